// Moves the binary point of a code: right shift with rounding half up, or left shift, then saturation
// (numeric contract 3.2 and 3.7). It serves accumulators on their way to output codes, and score sums on their way
// to scores.
//
// Lanes codes a beat, each with a signed shift of its own: positive to the right, negative to the left. Shifts
// beyond the word give 0 or a limit by definition. out_saturated_o marks the lanes that were clipped.
//
// Latency:    1 cycle.
// Throughput: 1 beat a cycle; in_ready_o depends on out_ready_i within the cycle.
// Limits:     none on the data; every shift of ShiftBits bits is allowed.
module shift_normalise #(
    // 16, or what of it divides the head dimension
    parameter int Lanes     = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
    parameter int InBits    = santa_pkg::AccumulatorBits,
    parameter int OutBits   = santa_pkg::OutputBits,
    parameter int ShiftBits = 9  // holds every shift that a design can ask for
) (
    input  logic                       clk_i,
    input  logic                       rst_ni,

    input  logic                       in_valid_i,
    output logic                       in_ready_o,
    input  logic [Lanes*InBits-1:0]    in_codes_i,
    input  logic [Lanes*ShiftBits-1:0] in_shifts_i,
    input  logic                       in_last_i,

    output logic                       out_valid_o,
    input  logic                       out_ready_i,
    output logic [Lanes*OutBits-1:0]   out_codes_o,
    output logic [Lanes-1:0]           out_saturated_o,
    output logic                       out_last_o
);

  // Wide enough for a code shifted left by OutBits: by then every code but 0 is out of range.
  localparam int WideBits = InBits + OutBits + 1;
  // Shift amounts are compared with InBits and OutBits in a width that holds both.
  localparam int AmountBits = (ShiftBits > 7) ? ShiftBits : 7;

  logic [Lanes*OutBits-1:0] codes;
  logic [Lanes-1:0] saturated;

  for (genvar l = 0; l < Lanes; l++) begin : gen_lane
    logic [InBits-1:0] code;
    logic [AmountBits-1:0] shift, right, left;
    logic sign;
    assign code  = in_codes_i[l*InBits+:InBits];
    assign sign  = code[InBits-1];
    assign shift = AmountBits'($signed(in_shifts_i[l*ShiftBits+:ShiftBits]));

    // Right: floor, plus the bit just below the cut. At InBits and beyond, floor is the sign and that bit cancels it.
    logic signed [InBits:0] fraction;  // the code with one bit below its last
    logic [InBits:0] cut;
    logic signed [InBits:0] rounded;
    assign right    = (shift > AmountBits'(InBits)) ? AmountBits'(InBits) : shift;
    assign fraction = {code, 1'b0};
    assign cut      = fraction >>> right;
    assign rounded  = $signed({cut[InBits], cut[InBits:1]}) + $signed({{InBits{1'b0}}, cut[0]});

    // Left by -shift = ~shift + 1: no negation.
    logic signed [WideBits-1:0] wide, scaled;
    assign left   = (~shift > AmountBits'(OutBits - 1)) ? AmountBits'(OutBits - 1) : ~shift;
    assign wide   = {{OutBits{sign}}, code, 1'b0};
    assign scaled = shift[AmountBits-1] ? wide <<< left : WideBits'(rounded);

    // In range if and only if the bits from the output's sign upward are all equal.
    logic clipped;
    assign clipped = scaled[WideBits-1:OutBits-1] != {(WideBits - OutBits + 1) {scaled[WideBits-1]}};
    assign saturated[l] = clipped;
    assign codes[l*OutBits+:OutBits] =
        clipped ? {scaled[WideBits-1], {(OutBits - 1) {~scaled[WideBits-1]}}} : scaled[OutBits-1:0];
  end

  assign in_ready_o = !out_valid_o || out_ready_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      out_valid_o     <= 1'b0;
      out_codes_o     <= '0;
      out_saturated_o <= '0;
      out_last_o      <= 1'b0;
    end else if (in_ready_o) begin
      out_valid_o <= in_valid_i;
      if (in_valid_i) begin
        out_codes_o     <= codes;
        out_saturated_o <= saturated;
        out_last_o      <= in_last_i;
      end
    end
  end

`ifndef SYNTHESIS
  initial begin
    if (Lanes < 1 || Lanes > 4096) $fatal(1, "Lanes = %0d: 1 to 4096 is allowed", Lanes);
    if (InBits < 2 || InBits > 63) $fatal(1, "InBits = %0d: 2 to 63 is allowed", InBits);
    if (OutBits < 2 || OutBits > 63) $fatal(1, "OutBits = %0d: 2 to 63 is allowed", OutBits);
    if (ShiftBits < 2 || ShiftBits > 16) $fatal(1, "ShiftBits = %0d: 2 to 16 is allowed", ShiftBits);
  end
`endif

endmodule
