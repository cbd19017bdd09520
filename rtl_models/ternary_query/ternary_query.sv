// Ternary query (numeric contract 3.3): the signed count of a feature's ternary vectors, from its code and random words.
//
// Stratified (Iid = 0): one word a feature, count = ((|q| << (Beta + R)) + (r << f)) >> (f + R) with f = QBits - 1 and
// R = RngBits. Only the upper f bits of a word can reach the count. I.i.d. (Iid = 1): 2^Beta words a feature, one is
// counted if (r << f) < (|q| << R), which the same f bits decide.
//
// Latency:    1 cycle from a feature's last word to its count.
// Throughput: a word a cycle: a feature a cycle stratified, 2^Beta cycles a feature i.i.d.
// Limits:     RngBits >= QBits - 1; codes are symmetric (-2^(QBits-1) does not occur). Additions only.
module ternary_query #(
    parameter int QBits   = santa_pkg::QBits,
    parameter int RngBits = santa_pkg::RngBits,
    parameter int Beta    = santa_pkg::Beta,
    parameter bit Iid     = santa_pkg::TernaryIid != 0
) (
    input  logic               clk_i,
    input  logic               rst_ni,

    input  logic               query_valid_i,
    output logic               query_ready_o,
    input  logic [QBits-1:0]   query_code_i,

    input  logic               word_valid_i,
    output logic               word_ready_o,
    input  logic [RngBits-1:0] word_word_i,

    output logic               count_valid_o,
    input  logic               count_ready_i,
    output logic [Beta+1:0]    count_count_o
);

  localparam int MagnitudeBits = QBits - 1;

  logic sign;
  logic [MagnitudeBits-1:0] magnitude, uniform;
  assign sign = query_code_i[QBits-1];
  assign magnitude = sign ? -query_code_i[MagnitudeBits-1:0] : query_code_i[MagnitudeBits-1:0];
  assign uniform = word_word_i[RngBits-1-:MagnitudeBits];

  if (RngBits > MagnitudeBits) begin : gen_unused
    logic unused_word;
    assign unused_word = ^word_word_i[RngBits-MagnitudeBits-1:0];
  end

  logic join_valid, room, take;
  logic last_word;
  logic [Beta:0] count;  // 0 to 2^Beta

  assign room = !count_valid_o || count_ready_i;
  assign join_valid = query_valid_i && word_valid_i;
  assign take = join_valid && (room || !last_word);
  assign query_ready_o = word_valid_i && last_word && room;
  assign word_ready_o = query_valid_i && (room || !last_word);

  if (Iid) begin : gen_iid
    logic [Beta:0] sum_q, word_q;  // words counted, and words seen, of this feature
    assign count = sum_q + {{Beta{1'b0}}, uniform < magnitude};
    assign last_word = word_q == (Beta + 1)'((1 << Beta) - 1);
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        sum_q  <= '0;
        word_q <= '0;
      end else if (take) begin
        sum_q  <= last_word ? '0 : count;
        word_q <= last_word ? '0 : word_q + (Beta + 1)'(1);
      end
    end
  end else begin : gen_stratified
    logic [MagnitudeBits+Beta:0] total;
    assign total = ((MagnitudeBits + Beta + 1)'(magnitude) << Beta) + (MagnitudeBits + Beta + 1)'(uniform);
    assign count = total[MagnitudeBits+:Beta+1];
    assign last_word = 1'b1;
    logic unused_total;
    assign unused_total = ^total[MagnitudeBits-1:0];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      count_valid_o <= 1'b0;
      count_count_o <= '0;
    end else if (room) begin
      count_valid_o <= take && last_word;
      if (take && last_word) count_count_o <= sign ? -{1'b0, count} : {1'b0, count};
    end
  end

`ifndef SYNTHESIS
  initial begin
    if (QBits < 2 || QBits > 24) $fatal(1, "QBits = %0d: 2 to 24 is allowed", QBits);
    if (RngBits < QBits - 1 || RngBits > 32) $fatal(1, "RngBits = %0d: QBits - 1 to 32 is allowed", RngBits);
    if (Beta < 0 || Beta > 12) $fatal(1, "Beta = %0d: 0 to 12 is allowed", Beta);
  end
`endif

endmodule
