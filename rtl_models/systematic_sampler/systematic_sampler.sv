// Systematic sampler: how often each key is drawn, from one offset (numeric contract 3.6).
//
// Purpose:    walks the weights once with a residual register: residual <- residual - (w << Sigma); while it is
//             negative the key is drawn and the mass added. Emits (key, count) of each drawn key, in order; the counts
//             of a row sum to 2^Sigma and a key of zero weight is never drawn. `last` marks the beat that completes
//             the sum; a row without mass (no key, or all of zero weight) emits one beat, key 0, count 0, last.
// Latency:    count cycles from a key's weight to its beat.
// Throughput: a row of N keys takes 1 + N + 2^Sigma cycles at most.
// Limits:     needs 0 <= offset < mass and mass = the sum of the weights. No multiplier, no divider.

module systematic_sampler #(
  parameter int Sigma        = santa_pkg::Sigma,
  parameter int WeightBits   = santa_pkg::WeightBits,
  parameter int MassBits     = santa_pkg::MassBits,
  parameter int ResidualBits = santa_pkg::ResidualBits,
  parameter int CountBits    = santa_pkg::CountBits,
  parameter int KeyBits      = santa_pkg::KeyBits,
  parameter int KeysBits     = santa_pkg::KeysBits
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,

  input  logic                  row_valid_i,
  output logic                  row_ready_o,
  input  logic [KeysBits-1:0]   row_keys_i,
  input  logic [MassBits-1:0]   row_mass_i,
  input  logic [MassBits-1:0]   row_offset_i,

  input  logic                  weight_valid_i,
  output logic                  weight_ready_o,
  input  logic [WeightBits-1:0] weight_weight_i,

  output logic                  drawn_valid_o,
  input  logic                  drawn_ready_i,
  output logic [KeyBits-1:0]    drawn_key_o,
  output logic [CountBits-1:0]  drawn_count_o,
  output logic                  drawn_last_o
);

  localparam logic [CountBits-1:0] Samples = CountBits'(1) << Sigma;

`ifndef SYNTHESIS
  initial begin
    if (Sigma < 0 || Sigma > 16) $fatal(1, "Sigma = %0d: 0 to 16 is allowed", Sigma);
    if (CountBits != Sigma + 1) $fatal(1, "CountBits = %0d: Sigma + 1 is allowed", CountBits);
    if (ResidualBits < MassBits + 1 || ResidualBits < WeightBits + Sigma + 1 || ResidualBits > 63) begin
      $fatal(1, "ResidualBits = %0d: a bit more than mass and shifted weight, up to 63", ResidualBits);
    end
  end
`endif

  typedef enum logic [1:0] {Idle, Walk, Draw, Empty} state_e;

  state_e                         state_q, state_d;
  logic [KeysBits-1:0]            keys_q, keys_d;
  logic [KeyBits-1:0]             key_q, key_d;
  logic [MassBits-1:0]            mass_q, mass_d;
  logic signed [ResidualBits-1:0] residual_q, residual_d;
  logic [CountBits-1:0]           count_q, count_d;
  logic [CountBits-1:0]           total_q, total_d;

  // One adder serves both: the weight is taken off while walking, the mass put on while drawing.
  logic signed [ResidualBits-1:0] operand, next;
  logic [ResidualBits-1:0]        shifted;
  logic [CountBits-1:0]           count, total;
  logic                           complete, at_end;

  assign shifted  = ResidualBits'(weight_weight_i) << Sigma;
  assign operand  = (state_q == Walk) ? ~$signed(shifted) : $signed(ResidualBits'(mass_q));
  assign next     = residual_q + operand + $signed({{(ResidualBits - 1){1'b0}}, state_q == Walk});
  assign count    = count_q + CountBits'(1);
  assign total    = total_q + CountBits'(1);
  assign complete = !next[ResidualBits-1];
  assign at_end   = keys_q == '0;

  always_comb begin
    state_d    = state_q;
    keys_d     = keys_q;
    key_d      = key_q;
    mass_d     = mass_q;
    residual_d = residual_q;
    count_d    = count_q;
    total_d    = total_q;
    case (state_q)
      Idle: begin
        if (row_valid_i) begin
          keys_d     = row_keys_i;
          key_d      = '0;
          mass_d     = row_mass_i;
          residual_d = $signed(ResidualBits'(row_offset_i));
          count_d    = '0;
          total_d    = '0;
          if (row_keys_i == '0) state_d = Empty;
          else state_d = Walk;
        end
      end
      Walk: begin
        if (weight_valid_i) begin
          keys_d     = keys_q - KeysBits'(1);
          residual_d = next;
          if (!complete) begin
            count_d = '0;
            state_d = Draw;
          end else begin
            key_d = key_q + KeyBits'(1);
            if (keys_q == KeysBits'(1)) begin
              if (total_q == '0) state_d = Empty;
              else state_d = Idle;
            end
          end
        end
      end
      Draw: begin
        // The addition that makes the residual positive again goes with the beat.
        if (!complete || drawn_ready_i) begin
          residual_d = next;
          count_d    = count;
          total_d    = total;
          if (complete) begin
            key_d   = key_q + KeyBits'(1);
            if (at_end) state_d = Idle;
            else state_d = Walk;
          end
        end
      end
      Empty: if (drawn_ready_i) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q    <= Idle;
      keys_q     <= '0;
      key_q      <= '0;
      mass_q     <= '0;
      residual_q <= '0;
      count_q    <= '0;
      total_q    <= '0;
    end else begin
      state_q    <= state_d;
      keys_q     <= keys_d;
      key_q      <= key_d;
      mass_q     <= mass_d;
      residual_q <= residual_d;
      count_q    <= count_d;
      total_q    <= total_d;
    end
  end

  assign row_ready_o    = state_q == Idle;
  assign weight_ready_o = state_q == Walk;
  assign drawn_valid_o  = (state_q == Draw && complete) || state_q == Empty;
  assign drawn_key_o    = (state_q == Empty) ? '0 : key_q;
  assign drawn_count_o  = (state_q == Empty) ? '0 : count;
  assign drawn_last_o   = state_q == Empty || total == Samples;

endmodule : systematic_sampler
