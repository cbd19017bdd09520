// Largest integer part of a row's scores, then the sum of its weights (numeric contract 3.4).
//
// Purpose:    two passes over a row. `row` says how many keys; that many `score` beats give `maximum`; that many
//             `weight` beats give `mass`. The maximum is the whole row's: partial sums are never rescaled.
// Latency:    the result of a pass is valid a cycle after its last beat.
// Throughput: a beat a cycle; three cycles more a row.
// Limits:     up to MaxKeys keys. Without a visible key, maximum is 0 and empty is 1.

module mass #(
  parameter int IntegerBits = santa_pkg::ScoreIntegerPartBits,
  parameter int WeightBits  = santa_pkg::WeightBits,
  parameter int MassBits    = santa_pkg::MassBits,
  parameter int KeysBits    = santa_pkg::KeysBits
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,

  input  logic                   row_valid_i,
  output logic                   row_ready_o,
  input  logic [KeysBits-1:0]    row_keys_i,

  input  logic                   score_valid_i,
  output logic                   score_ready_o,
  input  logic [IntegerBits-1:0] score_integer_i,
  input  logic                   score_visible_i,

  output logic                   maximum_valid_o,
  input  logic                   maximum_ready_i,
  output logic [IntegerBits-1:0] maximum_integer_o,
  output logic                   maximum_empty_o,

  input  logic                   weight_valid_i,
  output logic                   weight_ready_o,
  input  logic [WeightBits-1:0]  weight_weight_i,

  output logic                   mass_valid_o,
  input  logic                   mass_ready_i,
  output logic [MassBits-1:0]    mass_mass_o
);

`ifndef SYNTHESIS
  initial begin
    if (MassBits < WeightBits || MassBits > 62) begin
      $fatal(1, "MassBits = %0d: WeightBits = %0d to 62 is allowed", MassBits, WeightBits);
    end
  end
`endif

  typedef enum logic [2:0] {Idle, Scores, Maximum, Weights, Mass} state_e;

  state_e                        state_q, state_d;
  logic [KeysBits-1:0]           keys_q, keys_d;
  logic [KeysBits-1:0]           left_q, left_d;
  logic signed [IntegerBits-1:0] maximum_q, maximum_d;
  logic                          empty_q, empty_d;
  logic [MassBits-1:0]           mass_q, mass_d;

  always_comb begin
    state_d   = state_q;
    keys_d    = keys_q;
    left_d    = left_q;
    maximum_d = maximum_q;
    empty_d   = empty_q;
    mass_d    = mass_q;
    case (state_q)
      Idle: begin
        if (row_valid_i) begin
          keys_d    = row_keys_i;
          left_d    = row_keys_i;
          maximum_d = '0;
          empty_d   = 1'b1;
          mass_d    = '0;
          if (row_keys_i == '0) state_d = Maximum;
          else state_d = Scores;
        end
      end
      Scores: begin
        if (score_valid_i) begin
          if (score_visible_i && (empty_q || $signed(score_integer_i) > maximum_q)) begin
            maximum_d = $signed(score_integer_i);
          end
          if (score_visible_i) empty_d = 1'b0;
          left_d = left_q - KeysBits'(1);
          if (left_q == KeysBits'(1)) state_d = Maximum;
        end
      end
      Maximum: begin
        if (maximum_ready_i) begin
          left_d  = keys_q;
          if (keys_q == '0) state_d = Mass;
          else state_d = Weights;
        end
      end
      Weights: begin
        if (weight_valid_i) begin
          mass_d = mass_q + MassBits'(weight_weight_i);
          left_d = left_q - KeysBits'(1);
          if (left_q == KeysBits'(1)) state_d = Mass;
        end
      end
      Mass: if (mass_ready_i) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q   <= Idle;
      keys_q    <= '0;
      left_q    <= '0;
      maximum_q <= '0;
      empty_q   <= 1'b1;
      mass_q    <= '0;
    end else begin
      state_q   <= state_d;
      keys_q    <= keys_d;
      left_q    <= left_d;
      maximum_q <= maximum_d;
      empty_q   <= empty_d;
      mass_q    <= mass_d;
    end
  end

  assign row_ready_o       = state_q == Idle;
  assign score_ready_o     = state_q == Scores;
  assign maximum_valid_o   = state_q == Maximum;
  assign maximum_integer_o = maximum_q;
  assign maximum_empty_o   = empty_q;
  assign weight_ready_o    = state_q == Weights;
  assign mass_valid_o      = state_q == Mass;
  assign mass_mass_o       = mass_q;

endmodule : mass
