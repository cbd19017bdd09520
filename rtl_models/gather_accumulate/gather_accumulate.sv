// Gather and add (numeric contract 3.7): A_i = sum over drawn keys of c_n * v_(n,i), by additions alone.
//
// A value row arrives as HeadDim / Lanes beats of Lanes codes, lane 0 in the low bits, every beat with the row's
// count. ShiftAdd = 0 adds a beat count times; ShiftAdd = 1 adds it once for each set bit of the count, shifted left
// by the bit's place. After the beat that carries in_last_i the accumulators leave as HeadDim / Lanes beats, and are
// zero again. An empty step is one row with count 0 and in_last_i.
//
// Latency:    the first output beat is valid in the cycle after the last input beat is taken.
// Throughput: a beat holds the input for max(1, terms) cycles, terms = count or its number of set bits; a step of
//             repeated additions over drawn rows takes S * HeadDim / Lanes cycles, then HeadDim / Lanes to drain.
// Limits:     the counts of a step sum to at most Samples, or accumulators wrap; codes are symmetric
//             (-2^(VBits-1) does not occur); HeadDim is a multiple of Lanes.
module gather_accumulate #(
    parameter int HeadDim   = santa_pkg::HeadDim,
    // 16, or what of it divides the head dimension
    parameter int Lanes     = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
    parameter int VBits     = santa_pkg::VBits,
    parameter int CountBits = santa_pkg::CountBits,
    parameter int AccBits   = santa_pkg::AccumulatorBits,
    parameter bit ShiftAdd  = santa_pkg::ShiftAdd != 0
) (
    input  logic                     clk_i,
    input  logic                     rst_ni,

    input  logic                     in_valid_i,
    output logic                     in_ready_o,
    input  logic [CountBits-1:0]     in_count_i,
    input  logic [Lanes*VBits-1:0]   in_values_i,
    input  logic                     in_last_i,   // the same in all beats of a row

    output logic                     out_valid_o,
    input  logic                     out_ready_i,
    output logic [Lanes*AccBits-1:0] out_accumulators_o,
    output logic                     out_last_o
);

  localparam int Beats = HeadDim / Lanes;
  localparam int BeatBits = (Beats > 1) ? $clog2(Beats) : 1;
  localparam int SliceBits = Lanes * AccBits;

  // The slice in work is always the lowest: a finished beat rotates the accumulators by one slice, so there is no
  // address multiplexer.
  logic [HeadDim*AccBits-1:0] acc_d, acc_q;
  logic [BeatBits-1:0] beat_d, beat_q;
  logic drain_d, drain_q;

  logic beat_last;
  assign beat_last = beat_q == BeatBits'(Beats - 1);

  // Which term of the count is added in this cycle -----------------------------------------------------------------

  logic term_valid;  // there is something to add
  logic term_last;   // and nothing after it
  logic [Lanes*AccBits-1:0] term;

  logic [CountBits-1:0] done_d, done_q;  // additions done, or bits of the count done

  if (ShiftAdd) begin : gen_shift_add
    logic [CountBits-1:0] open, pick;  // set bits still to add, and the lowest of them
    always_comb begin
      open = in_count_i & ~done_q;
      pick = '0;
      for (int b = int'(CountBits) - 1; b >= 0; b--) begin
        if (open[b]) begin
          pick = '0;
          pick[b] = 1'b1;
        end
      end
    end
    assign term_valid = open != '0;
    assign term_last = open == pick;
    assign done_d = done_q | pick;
    for (genvar l = 0; l < Lanes; l++) begin : gen_lane
      logic [AccBits-1:0] value, shifted;
      assign value = AccBits'($signed(in_values_i[l*VBits+:VBits]));
      always_comb begin
        shifted = '0;
        for (int unsigned b = 0; b < CountBits; b++) begin
          shifted |= (value << b) & {AccBits{pick[b]}};
        end
      end
      assign term[l*AccBits+:AccBits] = shifted;
    end
  end else begin : gen_repeated
    assign term_valid = in_count_i != '0;
    assign done_d = done_q + CountBits'(1);
    assign term_last = (done_d == in_count_i) || !term_valid;
    for (genvar l = 0; l < Lanes; l++) begin : gen_lane
      assign term[l*AccBits+:AccBits] =
          AccBits'($signed(in_values_i[l*VBits+:VBits]));
    end
  end

  // Accumulators ---------------------------------------------------------------------------------------------------

  logic [SliceBits-1:0] sum, slice;
  for (genvar l = 0; l < Lanes; l++) begin : gen_add
    assign sum[l*AccBits+:AccBits] = acc_q[l*AccBits+:AccBits] + term[l*AccBits+:AccBits];
  end

  logic work, in_take, out_take;
  assign work = in_valid_i && !drain_q;
  assign in_ready_o = !drain_q && term_last;
  assign in_take = in_valid_i && in_ready_o;
  assign out_take = drain_q && out_ready_i;

  assign slice = (work && term_valid) ? sum : acc_q[SliceBits-1:0];

  logic [HeadDim*AccBits-1:0] rotated, drained, held;
  if (Beats > 1) begin : gen_rotate
    assign rotated = {slice, acc_q[HeadDim*AccBits-1:SliceBits]};
    assign drained = {{SliceBits{1'b0}}, acc_q[HeadDim*AccBits-1:SliceBits]};
    assign held    = {acc_q[HeadDim*AccBits-1:SliceBits], slice};
  end else begin : gen_single
    assign rotated = slice;
    assign drained = '0;
    assign held    = slice;
  end

  always_comb begin
    acc_d = acc_q;
    if (out_take) acc_d = drained;
    else if (in_take) acc_d = rotated;
    else if (work) acc_d = held;
  end

  assign beat_d = beat_last ? '0 : beat_q + BeatBits'(1);

  always_comb begin
    drain_d = drain_q;
    if (in_take && in_last_i && beat_last) drain_d = 1'b1;
    if (out_take && beat_last) drain_d = 1'b0;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      acc_q   <= '0;
      beat_q  <= '0;
      done_q  <= '0;
      drain_q <= 1'b0;
    end else begin
      acc_q   <= acc_d;
      drain_q <= drain_d;
      if (in_take || out_take) beat_q <= beat_d;
      if (in_take) done_q <= '0;
      else if (work) done_q <= done_d;
    end
  end

  assign out_valid_o = drain_q;
  assign out_accumulators_o = acc_q[SliceBits-1:0];
  assign out_last_o = beat_last;

`ifndef SYNTHESIS
  initial begin
    if (Lanes < 1 || HeadDim < Lanes || HeadDim % Lanes != 0 || HeadDim > 4096) begin
      $fatal(1, "HeadDim = %0d, Lanes = %0d: a multiple of Lanes up to 4096 is allowed", HeadDim, Lanes);
    end
    if (VBits < 2 || VBits > 24) $fatal(1, "VBits = %0d: 2 to 24 is allowed", VBits);
    if (CountBits < 1 || CountBits > 17) $fatal(1, "CountBits = %0d: 1 to 17 is allowed", CountBits);
    if (AccBits < VBits || AccBits > 63) begin
      $fatal(1, "AccBits = %0d: VBits = %0d to 63 is allowed", AccBits, VBits);
    end
  end
`endif

endmodule
