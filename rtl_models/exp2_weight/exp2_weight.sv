// Weight of a key: a base-2 exponential by table and shift (numeric contract 3.4).
//
// Purpose:    w = exp2_table(fraction) >> (maximum - integer part), or Mitchell's 1 + fraction in place of the table.
// Latency:    1 cycle.
// Throughput: a weight a cycle.
// Limits:     `maximum` must be at least the score's integer part where `visible`; a key that is not visible weighs 0.
//             The table is that of the package, so ScoreFrac and WeightBits are the package's.

module exp2_weight #(
  parameter bit Mitchell = santa_pkg::Mitchell != 0,
  parameter bit HalfUp   = santa_pkg::WeightHalfUp != 0
) (
  input  logic                                       clk_i,
  input  logic                                       rst_ni,

  input  logic                                       score_valid_i,
  output logic                                       score_ready_o,
  input  logic [santa_pkg::ScoreBits-1:0]            score_score_i,
  input  logic [santa_pkg::ScoreIntegerPartBits-1:0] score_maximum_i,
  input  logic                                       score_visible_i,

  output logic                                       weight_valid_o,
  input  logic                                       weight_ready_i,
  output logic [santa_pkg::WeightBits-1:0]           weight_weight_o
);

  localparam int ScoreBits   = santa_pkg::ScoreBits;
  localparam int ScoreFrac   = santa_pkg::ScoreFrac;
  localparam int WeightBits  = santa_pkg::WeightBits;
  localparam int IntegerBits = santa_pkg::ScoreIntegerPartBits;
  localparam int IndexBits   = (ScoreFrac == 0) ? 1 : ScoreFrac;

`ifndef SYNTHESIS
  initial begin
    if (IntegerBits != ScoreBits - ScoreFrac) $fatal(1, "IntegerBits = %0d: ScoreBits - ScoreFrac", IntegerBits);
    if (Mitchell && ScoreFrac > WeightBits - 1) $fatal(1, "ScoreFrac = %0d: at most WeightBits - 1", ScoreFrac);
    if (!Mitchell && ScoreFrac > 10) $fatal(1, "ScoreFrac = %0d: at most 10 with a table", ScoreFrac);
  end
`endif

  logic [IntegerBits-1:0] shift;
  logic [IndexBits-1:0]   fraction;
  logic [WeightBits-1:0]  entry, shifted;

  assign shift = score_maximum_i - score_score_i[ScoreBits-1 -: IntegerBits];

  generate
    if (ScoreFrac == 0) begin : gen_no_fraction
      assign fraction = 1'b0;
    end else begin : gen_fraction
      assign fraction = score_score_i[IndexBits-1:0];
    end

    if (!Mitchell) begin : gen_table
      assign entry = santa_pkg::exp2_table(fraction);
    end else if (ScoreFrac == 0) begin : gen_power
      assign entry = {1'b1, {(WeightBits - 1){1'b0}}};
    end else if (ScoreFrac == WeightBits - 1) begin : gen_mitchell_full
      assign entry = {1'b1, fraction};
    end else begin : gen_mitchell
      assign entry = {1'b1, fraction, {(WeightBits - 1 - ScoreFrac){1'b0}}};
    end

    if (HalfUp) begin : gen_half_up
      // (entry + 2^(shift - 1)) >> shift = ((entry >> (shift - 1)) + 1) >> 1, an adder of WeightBits.
      logic [WeightBits-1:0] halves;
      /* verilator lint_off UNUSEDSIGNAL */
      logic [WeightBits:0]   rounded;  // bit 0 is what the floor drops
      /* verilator lint_on UNUSEDSIGNAL */
      assign halves  = entry >> (shift - IntegerBits'(1));
      assign rounded = {1'b0, halves} + (WeightBits + 1)'(1);
      assign shifted = (shift == '0) ? entry : rounded[WeightBits:1];
    end else begin : gen_floor
      assign shifted = entry >> shift;
    end
  endgenerate

  logic                  valid_q, valid_d;
  logic [WeightBits-1:0] weight_q, weight_d;

  assign score_ready_o = !valid_q || weight_ready_i;

  always_comb begin
    valid_d  = valid_q;
    weight_d = weight_q;
    if (score_ready_o) begin
      valid_d = score_valid_i;
      if (score_valid_i) weight_d = score_visible_i ? shifted : '0;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q  <= 1'b0;
      weight_q <= '0;
    end else begin
      valid_q  <= valid_d;
      weight_q <= weight_d;
    end
  end

  assign weight_valid_o  = valid_q;
  assign weight_weight_o = weight_q;

endmodule : exp2_weight
