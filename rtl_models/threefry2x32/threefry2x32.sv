// Threefry-2x32 with 20 rounds, one round a cycle (numeric contract 3.9).
//
// Purpose:    the two random words of a key and a counter; word j of a draw is output j & 1 of counter j >> 1.
// Latency:    words are valid 21 cycles after the request is taken.
// Throughput: a request every 22 cycles.
// Limits:     one request at a time. Additions, rotations and exclusive-ors only.

module threefry2x32 (
  input  logic        clk_i,
  input  logic        rst_ni,

  input  logic        request_valid_i,
  output logic        request_ready_o,
  input  logic [31:0] request_key0_i,
  input  logic [31:0] request_key1_i,
  input  logic [31:0] request_counter0_i,
  input  logic [31:0] request_counter1_i,

  output logic        words_valid_o,
  input  logic        words_ready_i,
  output logic [31:0] words_word0_o,
  output logic [31:0] words_word1_o
);

  localparam logic [31:0] Parity = 32'h1BD11BDA;
  localparam logic [4:0]  LastRound = 5'd19;

  typedef enum logic [1:0] {Idle, Rounds, Done} state_e;

  state_e state_q, state_d;
  logic [4:0]  round_q, round_d;
  logic [31:0] x0_q, x0_d, x1_q, x1_d;
  // The key schedule rotates by one place at each injection, so that no multiplexer is needed.
  logic [31:0] ks0_q, ks0_d, ks1_q, ks1_d, ks2_q, ks2_d;

  logic [31:0] sum, rotated, mixed;
  logic [2:0]  injection;

  assign sum = x0_q + x1_q;
  assign mixed = rotated ^ sum;
  assign injection = round_q[4:2] + 3'd1;

  // Rotations of the eight rounds of a period.
  always_comb begin
    case (round_q[2:0])
      3'd0:    rotated = {x1_q[18:0], x1_q[31:19]};  // 13
      3'd1:    rotated = {x1_q[16:0], x1_q[31:17]};  // 15
      3'd2:    rotated = {x1_q[5:0], x1_q[31:6]};    // 26
      3'd3:    rotated = {x1_q[25:0], x1_q[31:26]};  // 6
      3'd4:    rotated = {x1_q[14:0], x1_q[31:15]};  // 17
      3'd5:    rotated = {x1_q[2:0], x1_q[31:3]};    // 29
      3'd6:    rotated = {x1_q[15:0], x1_q[31:16]};  // 16
      default: rotated = {x1_q[7:0], x1_q[31:8]};    // 24
    endcase
  end

  always_comb begin
    state_d = state_q;
    round_d = round_q;
    x0_d    = x0_q;
    x1_d    = x1_q;
    ks0_d   = ks0_q;
    ks1_d   = ks1_q;
    ks2_d   = ks2_q;
    case (state_q)
      Idle: begin
        if (request_valid_i) begin
          ks0_d   = request_key0_i;
          ks1_d   = request_key1_i;
          ks2_d   = Parity ^ request_key0_i ^ request_key1_i;
          x0_d    = request_counter0_i + request_key0_i;
          x1_d    = request_counter1_i + request_key1_i;
          round_d = 5'd0;
          state_d = Rounds;
        end
      end
      Rounds: begin
        x0_d = sum;
        x1_d = mixed;
        if (round_q[1:0] == 2'd3) begin
          x0_d  = sum + ks1_q;
          x1_d  = mixed + ks2_q + {29'd0, injection};
          ks0_d = ks1_q;
          ks1_d = ks2_q;
          ks2_d = ks0_q;
        end
        round_d = round_q + 5'd1;
        if (round_q == LastRound) state_d = Done;
      end
      Done: if (words_ready_i) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= Idle;
      round_q <= '0;
      x0_q    <= '0;
      x1_q    <= '0;
      ks0_q   <= '0;
      ks1_q   <= '0;
      ks2_q   <= '0;
    end else begin
      state_q <= state_d;
      round_q <= round_d;
      x0_q    <= x0_d;
      x1_q    <= x1_d;
      ks0_q   <= ks0_d;
      ks1_q   <= ks1_d;
      ks2_q   <= ks2_d;
    end
  end

  assign request_ready_o = state_q == Idle;
  assign words_valid_o   = state_q == Done;
  assign words_word0_o   = x0_q;
  assign words_word1_o   = x1_q;

endmodule : threefry2x32
