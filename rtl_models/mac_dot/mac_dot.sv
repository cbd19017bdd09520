// Dot product of a query and a key by multiplication (numeric contract 3.2): a_n = sum of q_i * k_(n,i). A baseline: the
// dense score stage, with the ports of ternary_dot.
//
// First the query: HeadDim signed codes, one a beat; they stay for all keys of the step. Then keys, each HeadDim /
// Lanes beats of Lanes codes, lane 0 in the low bits. The beat with key_last_i that ends a key ends the step: a query
// is next.
//
// Latency:    a key's sum is valid in the cycle after its last beat.
// Throughput: HeadDim cycles for a query, then HeadDim / Lanes cycles a key.
// Limits:     a step has at least one key; codes are symmetric; Lanes is a power of two. Lanes multipliers.
module mac_dot #(
    parameter int HeadDim = santa_pkg::HeadDim,
    // 16, or what of it divides the head dimension
    parameter int Lanes   = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
    parameter int QBits   = santa_pkg::QBits,
    parameter int KBits   = santa_pkg::KBits,
    // Bits of HeadDim * (2^(QBits-1) - 1) * (2^(KBits-1) - 1), and a sign
    parameter int SumBits =
        $clog2(64'(HeadDim) * ((64'd1 << (QBits - 1)) - 64'd1) * ((64'd1 << (KBits - 1)) - 64'd1) + 64'd1) + 1
) (
    input  logic                   clk_i,
    input  logic                   rst_ni,

    input  logic                   query_valid_i,
    output logic                   query_ready_o,
    input  logic [QBits-1:0]       query_code_i,

    input  logic                   key_valid_i,
    output logic                   key_ready_o,
    input  logic [Lanes*KBits-1:0] key_codes_i,
    input  logic                   key_last_i,   // the same in all beats of a key

    output logic                   sum_valid_o,
    input  logic                   sum_ready_i,
    output logic [SumBits-1:0]     sum_sum_o,
    output logic                   sum_last_o
);

  localparam int Beats      = HeadDim / Lanes;
  localparam int BeatBits   = (Beats > 1) ? $clog2(Beats) : 1;
  localparam int LoadBits   = (HeadDim > 1) ? $clog2(HeadDim) : 1;
  localparam int TermBits   = QBits + KBits - 1;  // a product of symmetric codes
  localparam int Levels     = $clog2(Lanes);
  localparam int TreeBits   = TermBits + Levels;
  localparam int SliceBits  = Lanes * QBits;

  // The query -------------------------------------------------------------------------------------------------------

  logic [HeadDim*QBits-1:0] query_q, query_rotated, query_loaded;
  logic [LoadBits-1:0] load_q;
  logic loaded_q;
  logic query_take, beat_take, step_done;

  assign query_ready_o = !loaded_q;
  assign query_take = query_valid_i && query_ready_o;

  if (HeadDim > 1) begin : gen_load
    assign query_loaded = {query_code_i, query_q[HeadDim*QBits-1:QBits]};
  end else begin : gen_load_one
    assign query_loaded = query_code_i;
  end
  if (Beats > 1) begin : gen_rotate
    assign query_rotated = {query_q[SliceBits-1:0], query_q[HeadDim*QBits-1:SliceBits]};
  end else begin : gen_still
    assign query_rotated = query_q;
  end

  // Lanes and their tree --------------------------------------------------------------------------------------------

  logic [Lanes*TermBits-1:0] terms;

  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    logic signed [TermBits-1:0] product;
    assign product = $signed(query_q[l*QBits+:QBits]) * $signed(key_codes_i[l*KBits+:KBits]);
    assign terms[l*TermBits+:TermBits] = product;
  end

  // Level j holds Lanes >> j sums of TermBits + j bits.
  for (genvar j = 0; j <= Levels; j++) begin : gen_level
    localparam int Nodes = Lanes >> j;
    localparam int Bits = TermBits + j;
    logic [Nodes*Bits-1:0] sums;
    if (j == 0) begin : gen_leaves
      assign sums = terms;
    end else begin : gen_nodes
      for (genvar n = 0; n < Nodes; n++) begin : gen_node
        logic [Bits-1:0] left, right;
        assign left  = Bits'($signed(gen_level[j-1].sums[2*n*(Bits-1)+:Bits-1]));
        assign right = Bits'($signed(gen_level[j-1].sums[(2*n+1)*(Bits-1)+:Bits-1]));
        assign sums[n*Bits+:Bits] = left + right;
      end
    end
  end

  logic [SumBits-1:0] tree, sum_d, sum_q;
  assign tree = SumBits'($signed(gen_level[Levels].sums[TreeBits-1:0]));
  assign sum_d = sum_q + tree;

  // Control ---------------------------------------------------------------------------------------------------------

  logic [BeatBits-1:0] beat_q;
  logic beat_last, room;

  assign beat_last = beat_q == BeatBits'(Beats - 1);
  assign room = !sum_valid_o || sum_ready_i;
  assign key_ready_o = loaded_q && (room || !beat_last);
  assign beat_take = key_valid_i && key_ready_o;
  assign step_done = beat_take && beat_last && key_last_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      query_q     <= '0;
      load_q      <= '0;
      loaded_q    <= 1'b0;
      beat_q      <= '0;
      sum_q       <= '0;
      sum_valid_o <= 1'b0;
      sum_sum_o   <= '0;
      sum_last_o  <= 1'b0;
    end else begin
      if (query_take) begin
        query_q <= query_loaded;
        load_q  <= (load_q == LoadBits'(HeadDim - 1)) ? '0 : load_q + LoadBits'(1);
        if (load_q == LoadBits'(HeadDim - 1)) loaded_q <= 1'b1;
      end
      if (step_done) loaded_q <= 1'b0;
      if (beat_take) query_q <= query_rotated;
      if (beat_take) begin
        sum_q  <= beat_last ? '0 : sum_d;
        beat_q <= beat_last ? '0 : beat_q + BeatBits'(1);
      end
      if (room) begin
        sum_valid_o <= beat_take && beat_last;
        if (beat_take && beat_last) begin
          sum_sum_o  <= sum_d;
          sum_last_o <= key_last_i;
        end
      end
    end
  end

`ifndef SYNTHESIS
  initial begin
    if (Lanes < 1 || (Lanes & (Lanes - 1)) != 0 || HeadDim % Lanes != 0 || HeadDim > 4096) begin
      $fatal(1, "HeadDim = %0d, Lanes = %0d: a power of two that divides HeadDim is allowed", HeadDim, Lanes);
    end
    if (KBits < 2 || KBits > 24) $fatal(1, "KBits = %0d: 2 to 24 is allowed", KBits);
    if (QBits < 2 || QBits > 24) $fatal(1, "QBits = %0d: 2 to 24 is allowed", QBits);
    if (SumBits < 2 || SumBits > 63) $fatal(1, "SumBits = %0d: 2 to 63 is allowed", SumBits);
  end
`endif

endmodule
