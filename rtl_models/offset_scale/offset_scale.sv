// Offset U = floor(r * Z / 2^R) of a random word r and the mass Z, bit-serial (numeric contract 3.5).
//
// Purpose:    a uniform offset in [0, Z). One conditional addition and a shift for each bit of r, lowest first: nested
//             floors of halves are the floor of the whole, so the bits that are shifted out need not be kept.
// Latency:    RngBits + 1 cycles.
// Throughput: an offset every RngBits + 2 cycles.
// Limits:     one offset at a time; no multiplier. RngBits 1 to 32, MassBits 1 to 62.

module offset_scale #(
  parameter int RngBits  = santa_pkg::RngBits,
  parameter int MassBits = santa_pkg::MassBits
) (
  input  logic                clk_i,
  input  logic                rst_ni,

  input  logic                scale_valid_i,
  output logic                scale_ready_o,
  input  logic [RngBits-1:0]  scale_word_i,
  input  logic [MassBits-1:0] scale_mass_i,

  output logic                offset_valid_o,
  input  logic                offset_ready_i,
  output logic [MassBits-1:0] offset_offset_o
);

  localparam logic [5:0] Bits = 6'(RngBits);

`ifndef SYNTHESIS
  initial begin
    if (RngBits < 1 || RngBits > 32) $fatal(1, "RngBits = %0d: 1 to 32 is allowed", RngBits);
    if (MassBits < 1 || MassBits > 62) $fatal(1, "MassBits = %0d: 1 to 62 is allowed", MassBits);
  end
`endif

  typedef enum logic [1:0] {Idle, Add, Done} state_e;

  state_e              state_q, state_d;
  logic [5:0]          bits_q, bits_d;
  logic [RngBits-1:0]  word_q, word_d;
  logic [MassBits-1:0] mass_q, mass_d;
  logic [MassBits-1:0] offset_q, offset_d;
  /* verilator lint_off UNUSEDSIGNAL */
  logic [MassBits:0]   sum;  // bit 0 is what the floor drops
  /* verilator lint_on UNUSEDSIGNAL */

  assign sum = {1'b0, offset_q} + (word_q[0] ? {1'b0, mass_q} : '0);

  always_comb begin
    state_d  = state_q;
    bits_d   = bits_q;
    word_d   = word_q;
    mass_d   = mass_q;
    offset_d = offset_q;
    case (state_q)
      Idle: begin
        if (scale_valid_i) begin
          word_d   = scale_word_i;
          mass_d   = scale_mass_i;
          offset_d = '0;
          bits_d   = Bits;
          state_d  = Add;
        end
      end
      Add: begin
        offset_d = sum[MassBits:1];
        word_d   = word_q >> 1;
        bits_d   = bits_q - 6'd1;
        if (bits_q == 6'd1) state_d = Done;
      end
      Done: if (offset_ready_i) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q  <= Idle;
      bits_q   <= '0;
      word_q   <= '0;
      mass_q   <= '0;
      offset_q <= '0;
    end else begin
      state_q  <= state_d;
      bits_q   <= bits_d;
      word_q   <= word_d;
      mass_q   <= mass_d;
      offset_q <= offset_d;
    end
  end

  assign scale_ready_o   = state_q == Idle;
  assign offset_valid_o  = state_q == Done;
  assign offset_offset_o = offset_q;

endmodule : offset_scale
