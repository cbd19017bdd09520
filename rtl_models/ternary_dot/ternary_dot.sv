// Dot product of a ternary query and a key by additions alone (numeric contract 3.3): a_n = sum of t^(b)_i * k_(n,i)
// over the 2^Beta ternary vectors b and the features i.
//
// First the query: HeadDim signed counts, one a beat; they stay for all keys of the step. Then keys, each HeadDim /
// Lanes beats of Lanes codes, lane 0 in the low bits. Every pass over a beat adds +k, -k or nothing in each lane, in a
// tree. Planes = 0 makes a pass of each ternary vector, 2^Beta in all; Planes = 1 one of each bit of the counts,
// Beta + 1 in all, whose sum is shifted. The beat with key_last_i that ends a key ends the step: a query is next.
//
// Latency:    a key's sum is valid in the cycle after its last pass.
// Throughput: HeadDim cycles for a query, then HeadDim / Lanes * passes cycles a key.
// Limits:     a step has at least one key; counts are -2^Beta to 2^Beta, key codes symmetric; Lanes is a power of two.
module ternary_dot #(
    parameter int HeadDim = santa_pkg::HeadDim,
    // 16, or what of it divides the head dimension
    parameter int Lanes   = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
    parameter int KBits   = santa_pkg::KBits,
    parameter int Beta    = santa_pkg::Beta,
    parameter bit Planes  = 1'b0,
    // Bits of HeadDim * 2^Beta * (2^(KBits-1) - 1), and a sign
    parameter int SumBits = $clog2((64'(HeadDim) << Beta) * ((64'd1 << (KBits - 1)) - 64'd1) + 64'd1) + 1
) (
    input  logic                   clk_i,
    input  logic                   rst_ni,

    input  logic                   query_valid_i,
    output logic                   query_ready_o,
    input  logic [Beta+1:0]        query_count_i,

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
  localparam int Passes     = Planes ? Beta + 1 : (1 << Beta);
  localparam int PassBits   = Beta + 1;
  localparam int Levels     = $clog2(Lanes);
  localparam int TreeBits   = KBits + Levels;
  localparam int FactorBits = Beta + 2;  // a sign and a magnitude
  localparam int SliceBits  = Lanes * FactorBits;

  // The query -------------------------------------------------------------------------------------------------------

  logic [HeadDim*FactorBits-1:0] query_q, query_rotated, query_loaded;
  logic [LoadBits-1:0] load_q;
  logic loaded_q;
  logic query_take, beat_take, step_done;
  logic [FactorBits-1:0] factor;

  // Kept as sign and magnitude: negated once here, not in every pass.
  assign factor = {
    query_count_i[Beta+1], query_count_i[Beta+1] ? -query_count_i[Beta:0] : query_count_i[Beta:0]
  };
  assign query_ready_o = !loaded_q;
  assign query_take = query_valid_i && query_ready_o;

  if (HeadDim > 1) begin : gen_load
    assign query_loaded = {factor, query_q[HeadDim*FactorBits-1:FactorBits]};
  end else begin : gen_load_one
    assign query_loaded = factor;
  end
  if (Beats > 1) begin : gen_rotate
    assign query_rotated = {query_q[SliceBits-1:0], query_q[HeadDim*FactorBits-1:SliceBits]};
  end else begin : gen_still
    assign query_rotated = query_q;
  end

  // Lanes and their tree --------------------------------------------------------------------------------------------

  logic [PassBits-1:0] pass_q;
  logic [Lanes*KBits-1:0] terms;

  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    logic [Beta:0] magnitude;
    logic [KBits-1:0] code;
    logic hit;
    assign magnitude = query_q[l*FactorBits+:Beta+1];
    assign code = key_codes_i[l*KBits+:KBits];
    if (Planes) begin : gen_plane
      assign hit = |((magnitude >> pass_q) & PassBits'(1));
    end else begin : gen_vector
      assign hit = pass_q < magnitude;
    end
    assign terms[l*KBits+:KBits] = !hit ? '0 : query_q[l*FactorBits+Beta+1] ? -code : code;
  end

  // Level j holds Lanes >> j sums of KBits + j bits.
  for (genvar j = 0; j <= Levels; j++) begin : gen_level
    localparam int Nodes = Lanes >> j;
    localparam int Bits = KBits + j;
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

  logic [SumBits-1:0] tree, addend, sum_d, sum_q;
  assign tree = SumBits'($signed(gen_level[Levels].sums[TreeBits-1:0]));
  if (Planes) begin : gen_shift
    assign addend = tree << pass_q;
  end else begin : gen_no_shift
    assign addend = tree;
  end
  assign sum_d = sum_q + addend;

  // Control ---------------------------------------------------------------------------------------------------------

  logic [BeatBits-1:0] beat_q;
  logic pass_last, beat_last, room, pass_take;

  assign pass_last = pass_q == PassBits'(Passes - 1);
  assign beat_last = beat_q == BeatBits'(Beats - 1);
  assign room = !sum_valid_o || sum_ready_i;
  assign pass_take = loaded_q && key_valid_i && (room || !(pass_last && beat_last));
  assign beat_take = pass_take && pass_last;
  assign key_ready_o = loaded_q && pass_last && (room || !beat_last);
  assign step_done = beat_take && beat_last && key_last_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      query_q     <= '0;
      load_q      <= '0;
      loaded_q    <= 1'b0;
      pass_q      <= '0;
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
      if (pass_take) begin
        pass_q <= pass_last ? '0 : pass_q + PassBits'(1);
        sum_q  <= (pass_last && beat_last) ? '0 : sum_d;
      end
      if (beat_take) beat_q <= beat_last ? '0 : beat_q + BeatBits'(1);
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
    if (Beta < 0 || Beta > 12) $fatal(1, "Beta = %0d: 0 to 12 is allowed", Beta);
    if (SumBits < TreeBits || SumBits > 63) $fatal(1, "SumBits = %0d: %0d to 63 is allowed", SumBits, TreeBits);
  end
`endif

endmodule
