// 32-bit Galois LFSR, right shifting, 32 single-bit steps a word (numeric contract 3.9).
//
// Purpose:    the cheap random words. A seed loads the state; `count` words follow, each after 32 more steps.
// Latency:    32 / StepsPerCycle + 1 cycles from seed to the first word.
// Throughput: a word every 32 / StepsPerCycle + 1 cycles.
// Limits:     a seed of zero becomes 1. StepsPerCycle is a power of two, 1 to 32; exclusive-ors only.

module lfsr32 #(
  parameter int StepsPerCycle = 1,
  parameter int CountBits     = 18,
  parameter int RngBits       = santa_pkg::RngBits
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 seed_valid_i,
  output logic                 seed_ready_o,
  input  logic [31:0]          seed_state_i,
  input  logic [CountBits-1:0] seed_count_i,

  output logic                 word_valid_o,
  input  logic                 word_ready_i,
  output logic [RngBits-1:0]   word_word_o,
  output logic [31:0]          word_state_o
);

  localparam logic [31:0] Mask = 32'hA3000000;
  localparam logic [5:0]  Cycles = 6'(32 / StepsPerCycle);

`ifndef SYNTHESIS
  initial begin
    if (StepsPerCycle < 1 || StepsPerCycle > 32 || (StepsPerCycle & (StepsPerCycle - 1)) != 0) begin
      $fatal(1, "StepsPerCycle = %0d: a power of two up to 32 is allowed", StepsPerCycle);
    end
    if (RngBits < 1 || RngBits > 32) $fatal(1, "RngBits = %0d: 1 to 32 is allowed", RngBits);
  end
`endif

  typedef enum logic [1:0] {Idle, Steps, Word} state_e;

  state_e               state_q, state_d;
  logic [31:0]          lfsr_q, lfsr_d;
  logic [5:0]           cycle_q, cycle_d;
  logic [CountBits-1:0] count_q, count_d;

  function automatic logic [31:0] step(input logic [31:0] state);
    step = {1'b0, state[31:1]} ^ (state[0] ? Mask : 32'd0);
  endfunction

  logic [31:0] stepped;
  always_comb begin
    stepped = lfsr_q;
    for (int i = 0; i < StepsPerCycle; i++) stepped = step(stepped);
  end

  always_comb begin
    state_d = state_q;
    lfsr_d  = lfsr_q;
    cycle_d = cycle_q;
    count_d = count_q;
    case (state_q)
      Idle: begin
        if (seed_valid_i) begin
          lfsr_d  = (seed_state_i == 32'd0) ? 32'd1 : seed_state_i;
          count_d = seed_count_i;
          cycle_d = Cycles;
          if (seed_count_i != '0) state_d = Steps;
        end
      end
      Steps: begin
        lfsr_d  = stepped;
        cycle_d = cycle_q - 6'd1;
        if (cycle_q == 6'd1) state_d = Word;
      end
      Word: begin
        if (word_ready_i) begin
          cycle_d = Cycles;
          count_d = count_q - CountBits'(1);
          if (count_q == CountBits'(1)) state_d = Idle;
          else state_d = Steps;
        end
      end
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= Idle;
      lfsr_q  <= 32'd1;
      cycle_q <= '0;
      count_q <= '0;
    end else begin
      state_q <= state_d;
      lfsr_q  <= lfsr_d;
      cycle_q <= cycle_d;
      count_q <= count_d;
    end
  end

  assign seed_ready_o = state_q == Idle;
  assign word_valid_o = state_q == Word;
  assign word_word_o  = lfsr_q[31 -: RngBits];
  assign word_state_o = lfsr_q;

endmodule : lfsr32
