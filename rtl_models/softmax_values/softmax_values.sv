// Weighted mean of value rows by multiplication and division (numeric contract 3.8): A_i = sum of w_n * v_(n,i), then
// out_i = floor((2 * (A_i << Guard) + Z) / (2 * Z)), Z being the sum of the weights. A baseline: the value stage of
// dense and top-k attention, with the ports of gather_accumulate.
//
// A value row arrives as HeadDim / Lanes beats of Lanes codes, lane 0 in the low bits, every beat with the row's weight.
// The division is bit-serial: a conditional subtraction a lane and a cycle, for each bit of the quotient.
//
// Latency:    QuotientBits + 1 cycles from the last input beat to the first output beat.
// Throughput: a beat a cycle; then HeadDim / Lanes * (QuotientBits + 2) cycles to divide and leave.
// Limits:     an empty step is one row with weight 0 and in_last_i, and gives 0; codes are symmetric. Lanes multipliers.
module softmax_values #(
    parameter int HeadDim      = santa_pkg::HeadDim,
    // 16, or what of it divides the head dimension
    parameter int Lanes        = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
    parameter int VBits        = santa_pkg::VBits,
    parameter int WeightBits   = santa_pkg::WeightBits,
    parameter int MassBits     = santa_pkg::MassBits,
    parameter int Guard        = santa_pkg::Sigma,
    parameter int AccBits      = MassBits + VBits,
    parameter int QuotientBits = VBits + Guard + 1
) (
    input  logic                          clk_i,
    input  logic                          rst_ni,

    input  logic                          in_valid_i,
    output logic                          in_ready_o,
    input  logic [WeightBits-1:0]         in_weight_i,
    input  logic [Lanes*VBits-1:0]        in_values_i,
    input  logic                          in_last_i,   // the same in all beats of a row

    output logic                          out_valid_o,
    input  logic                          out_ready_i,
    output logic [Lanes*QuotientBits-1:0] out_codes_o,
    output logic                          out_last_o
);

  localparam int Beats     = HeadDim / Lanes;
  localparam int BeatBits  = (Beats > 1) ? $clog2(Beats) : 1;
  localparam int SliceBits = Lanes * AccBits;
  localparam int StepBits  = $clog2(QuotientBits + 1);
  // Holds 2 * Z shifted by QuotientBits, and a sign. The quotient is biased by half its range so that no operand is
  // negative: 2 * (A << Guard) + Z + (Z << QuotientBits).
  localparam int RemainderBits = MassBits + QuotientBits + 2;

  typedef enum logic [1:0] {Rows, Load, Divide, Leave} state_e;

  state_e state_q;
  logic [HeadDim*AccBits-1:0] acc_q, acc_rotated;
  logic [SliceBits-1:0] sums;
  logic [MassBits-1:0] mass_q;
  logic [BeatBits-1:0] beat_q;
  logic [StepBits-1:0] step_q;
  logic [RemainderBits-1:0] divisor_q;
  logic [Lanes*RemainderBits-1:0] remainder_q, numerators, remainders;
  logic [Lanes*QuotientBits-1:0] quotient_q, quotients, codes;
  logic [Lanes-1:0] fits;
  logic beat_last, in_take, out_take;

  assign beat_last = beat_q == BeatBits'(Beats - 1);
  assign in_ready_o = state_q == Rows;
  assign in_take = in_valid_i && in_ready_o;
  assign out_valid_o = state_q == Leave;
  assign out_take = out_valid_o && out_ready_i;

  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    logic signed [WeightBits+VBits:0] product;
    logic signed [AccBits-1:0] acc;
    logic [RemainderBits-1:0] difference;
    assign product = $signed({1'b0, in_weight_i}) * $signed(in_values_i[l*VBits+:VBits]);
    assign acc = acc_q[l*AccBits+:AccBits];
    assign sums[l*AccBits+:AccBits] = acc + AccBits'(product);

    assign numerators[l*RemainderBits+:RemainderBits] =
        (RemainderBits'(acc) << (Guard + 1)) + RemainderBits'(mass_q) + (RemainderBits'(mass_q) << QuotientBits);
    assign difference = remainder_q[l*RemainderBits+:RemainderBits] - divisor_q;
    assign fits[l] = !difference[RemainderBits-1];
    assign remainders[l*RemainderBits+:RemainderBits] =
        fits[l] ? difference : remainder_q[l*RemainderBits+:RemainderBits];
    if (QuotientBits > 1) begin : gen_quotient
      assign quotients[l*QuotientBits+:QuotientBits] = {quotient_q[l*QuotientBits+:QuotientBits-1], fits[l]};
    end
    // The bias taken off again is the upper bit inverted.
    assign codes[l*QuotientBits+:QuotientBits] = (mass_q == '0) ? '0 :
        {~quotient_q[l*QuotientBits+QuotientBits-1], quotient_q[l*QuotientBits+:QuotientBits-1]};
  end

  if (Beats > 1) begin : gen_rotate
    assign acc_rotated = {(state_q == Rows) ? sums : {SliceBits{1'b0}}, acc_q[HeadDim*AccBits-1:SliceBits]};
  end else begin : gen_still
    assign acc_rotated = (state_q == Rows) ? sums : '0;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q     <= Rows;
      acc_q       <= '0;
      mass_q      <= '0;
      beat_q      <= '0;
      step_q      <= '0;
      divisor_q   <= '0;
      remainder_q <= '0;
      quotient_q  <= '0;
    end else begin
      if (in_take || out_take) begin
        acc_q  <= acc_rotated;
        beat_q <= beat_last ? '0 : beat_q + BeatBits'(1);
      end
      case (state_q)
        Rows: begin
          if (in_take && beat_q == '0) mass_q <= mass_q + MassBits'(in_weight_i);
          if (in_take && beat_last && in_last_i) state_q <= Load;
        end
        Load: begin
          remainder_q <= numerators;
          divisor_q   <= RemainderBits'(mass_q) << QuotientBits;
          step_q      <= StepBits'(QuotientBits);
          state_q     <= Divide;
        end
        Divide: begin
          remainder_q <= remainders;
          quotient_q  <= quotients;
          divisor_q   <= divisor_q >> 1;
          step_q      <= step_q - StepBits'(1);
          if (step_q == StepBits'(1)) state_q <= Leave;
        end
        default: begin
          if (out_take) begin
            state_q <= beat_last ? Rows : Load;
            if (beat_last) mass_q <= '0;
          end
        end
      endcase
    end
  end

  assign out_codes_o = codes;
  assign out_last_o = beat_last;

`ifndef SYNTHESIS
  initial begin
    if (Lanes < 1 || HeadDim < Lanes || HeadDim % Lanes != 0 || HeadDim > 4096) begin
      $fatal(1, "HeadDim = %0d, Lanes = %0d: a multiple of Lanes up to 4096 is allowed", HeadDim, Lanes);
    end
    if (VBits < 2 || VBits > 24) $fatal(1, "VBits = %0d: 2 to 24 is allowed", VBits);
    if (Guard < 0 || Guard > 16) $fatal(1, "Guard = %0d: 0 to 16 is allowed", Guard);
    if (AccBits < WeightBits + VBits || AccBits > 63) begin
      $fatal(1, "AccBits = %0d: WeightBits + VBits = %0d to 63 is allowed", AccBits, WeightBits + VBits);
    end
  end
`endif

endmodule
