// Score sampler: one head from scores to drawn keys (numeric contract 3.4 to 3.6).
//
// Purpose:    keeps a row's scores, and walks them three times. While they are written the maximum is found; the second
//             pass makes the weights and adds them to the mass, from which the offset is scaled; the third pass makes
//             the same weights again and draws. It is exp2_weight, mass, offset_scale and systematic_sampler about a
//             score memory; drawn keys wait in a FIFO of Samples entries and leave, in order, once the row is walked.
// Latency:    3 * N + RngBits + Samples + 9 cycles from a row of N keys to its first drawn key.
// Throughput: one row at a time, a cycle more for each drawn key; the next row is taken after the last of them.
// Limits:     up to MaxKeys keys. MaxKeys * (ScoreBits + 1) bits of score memory, one port, synchronous read; Samples *
//             (KeyBits + CountBits + 1) bits of FIFO, asynchronous read. `weight`, `mass` and `offset` are monitors:
//             valid without ready, dropped by a synthesiser when nothing is connected. No multiplier, no divider.

module score_sampler (
  input  logic                             clk_i,
  input  logic                             rst_ni,

  input  logic                             row_valid_i,
  output logic                             row_ready_o,
  input  logic [santa_pkg::KeysBits-1:0]   row_keys_i,
  input  logic [santa_pkg::RngBits-1:0]    row_word_i,

  input  logic                             score_valid_i,
  output logic                             score_ready_o,
  input  logic [santa_pkg::ScoreBits-1:0]  score_score_i,
  input  logic                             score_visible_i,

  output logic                             drawn_valid_o,
  input  logic                             drawn_ready_i,
  output logic [santa_pkg::KeyBits-1:0]    drawn_key_o,
  output logic [santa_pkg::CountBits-1:0]  drawn_count_o,
  output logic                             drawn_last_o,

  output logic                             weight_valid_o,
  output logic [santa_pkg::WeightBits-1:0] weight_weight_o,

  output logic                             mass_valid_o,
  output logic [santa_pkg::MassBits-1:0]   mass_mass_o,

  output logic                             offset_valid_o,
  output logic [santa_pkg::MassBits-1:0]   offset_offset_o
);

  localparam int MaxKeys     = santa_pkg::MaxKeys;
  localparam int Samples     = santa_pkg::Samples;
  localparam int ScoreBits   = santa_pkg::ScoreBits;
  localparam int IntegerBits = santa_pkg::ScoreIntegerPartBits;
  localparam int WeightBits  = santa_pkg::WeightBits;
  localparam int MassBits    = santa_pkg::MassBits;
  localparam int RngBits     = santa_pkg::RngBits;
  localparam int CountBits   = santa_pkg::CountBits;
  localparam int KeyBits     = santa_pkg::KeyBits;
  localparam int KeysBits    = santa_pkg::KeysBits;
  localparam int EntryBits   = KeyBits + CountBits + 1;
  localparam int SlotBits    = (Samples == 1) ? 1 : $clog2(Samples);

  typedef enum logic [2:0] {Idle, Scores, Weights, Draw, Drain} state_e;

  state_e                 state_q, state_d;
  logic [KeysBits-1:0]    keys_q;
  logic [RngBits-1:0]     word_q;
  logic [IntegerBits-1:0] maximum_q;
  logic                   row_take, pass_start;

  // Score memory: written in the first pass, read in the others -----------------------------------------------------

  logic [ScoreBits:0]  memory_q [0:MaxKeys-1];
  logic [ScoreBits:0]  entry_q;        // what was read: visible, score
  logic                entry_valid_q, entry_room;
  logic [KeyBits-1:0]  address_q;
  logic [KeysBits-1:0] left_q;         // keys still to be read in this pass
  logic                write, read;

  assign write = score_valid_i && score_ready_o;
  assign read  = left_q != '0 && entry_room;

  always_ff @(posedge clk_i) begin
    if (write) memory_q[address_q] <= {score_visible_i, score_score_i};
    else if (read) entry_q <= memory_q[address_q];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      address_q     <= '0;
      left_q        <= '0;
      entry_valid_q <= 1'b0;
    end else begin
      if (row_take || pass_start) address_q <= '0;
      else if (write || read) address_q <= address_q + KeyBits'(1);
      if (pass_start) left_q <= keys_q;
      else if (read) left_q <= left_q - KeysBits'(1);
      if (entry_room) entry_valid_q <= read;
    end
  end

  // Weights, for the mass in the second pass and for the sampler in the third --------------------------------------

  logic                  weight_valid, weight_ready, exp_ready;
  logic                  mass_weight_valid, mass_weight_ready, sampler_weight_valid, sampler_weight_ready;
  logic [WeightBits-1:0] weight;

  assign entry_room           = !entry_valid_q || exp_ready;
  assign mass_weight_valid    = weight_valid && state_q == Weights;
  assign sampler_weight_valid = weight_valid && state_q == Draw;
  assign weight_ready         = (state_q == Weights) ? mass_weight_ready : sampler_weight_ready;

  exp2_weight u_exp2_weight (
    .clk_i,
    .rst_ni,
    .score_valid_i   (entry_valid_q),
    .score_ready_o   (exp_ready),
    .score_score_i   (entry_q[ScoreBits-1:0]),
    .score_maximum_i (maximum_q),
    .score_visible_i (entry_q[ScoreBits]),
    .weight_valid_o  (weight_valid),
    .weight_ready_i  (weight_ready),
    .weight_weight_o (weight)
  );

  // Mass and offset ------------------------------------------------------------------------------------------------

  logic                   maximum_valid, mass_valid, scale_ready, scaled_q, offset_valid, offset_take;
  logic [IntegerBits-1:0] maximum;
  logic [MassBits-1:0]    mass, offset;
  logic                   unused_row_ready, unused_empty;

  mass u_mass (
    .clk_i,
    .rst_ni,
    .row_valid_i       (row_take),
    .row_ready_o       (unused_row_ready),  // always high in Idle
    .row_keys_i,
    .score_valid_i,
    .score_ready_o,
    .score_integer_i   (score_score_i[ScoreBits-1 -: IntegerBits]),
    .score_visible_i,
    .maximum_valid_o   (maximum_valid),
    .maximum_ready_i   (1'b1),
    .maximum_integer_o (maximum),
    .maximum_empty_o   (unused_empty),
    .weight_valid_i    (mass_weight_valid),
    .weight_ready_o    (mass_weight_ready),
    .weight_weight_i   (weight),
    .mass_valid_o      (mass_valid),
    .mass_ready_i      (offset_take),  // the mass stands until the sampler has it
    .mass_mass_o       (mass)
  );

  offset_scale u_offset_scale (
    .clk_i,
    .rst_ni,
    .scale_valid_i   (mass_valid && !scaled_q),
    .scale_ready_o   (scale_ready),
    .scale_word_i    (word_q),
    .scale_mass_i    (mass),
    .offset_valid_o  (offset_valid),
    .offset_ready_i  (offset_take),
    .offset_offset_o (offset)
  );

  // Counts ---------------------------------------------------------------------------------------------------------

  logic                 sampler_ready, push, push_last, pop;
  logic [KeyBits-1:0]   push_key;
  logic [CountBits-1:0] push_count;

  assign offset_take = offset_valid && sampler_ready;

  systematic_sampler u_systematic_sampler (
    .clk_i,
    .rst_ni,
    .row_valid_i     (offset_valid),
    .row_ready_o     (sampler_ready),
    .row_keys_i      (keys_q),
    .row_mass_i      (mass),
    .row_offset_i    (offset),
    .weight_valid_i  (sampler_weight_valid),
    .weight_ready_o  (sampler_weight_ready),
    .weight_weight_i (weight),
    .drawn_valid_o   (push),
    .drawn_ready_i   (1'b1),  // a row draws Samples keys at most
    .drawn_key_o     (push_key),
    .drawn_count_o   (push_count),
    .drawn_last_o    (push_last)
  );

  // Every row starts with the FIFO empty, so that its places are simply counted up.
  logic [EntryBits-1:0] fifo_q [0:Samples-1];
  logic [CountBits-1:0] pushed_q, popped_q;

  always_ff @(posedge clk_i) begin
    if (push) fifo_q[pushed_q[SlotBits-1:0]] <= {push_last, push_count, push_key};
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pushed_q <= '0;
      popped_q <= '0;
    end else if (row_take) begin
      pushed_q <= '0;
      popped_q <= '0;
    end else begin
      if (push) pushed_q <= pushed_q + CountBits'(1);
      if (pop) popped_q <= popped_q + CountBits'(1);
    end
  end

  assign drawn_valid_o = state_q == Drain;
  assign {drawn_last_o, drawn_count_o, drawn_key_o} = fifo_q[popped_q[SlotBits-1:0]];
  assign pop = drawn_valid_o && drawn_ready_i;

  // Control --------------------------------------------------------------------------------------------------------

  assign row_ready_o = state_q == Idle;
  assign row_take    = row_valid_i && row_ready_o;
  assign pass_start  = maximum_valid || offset_take;

  always_comb begin
    state_d = state_q;
    case (state_q)
      Idle:    if (row_valid_i) state_d = Scores;
      Scores:  if (maximum_valid) state_d = Weights;
      Weights: if (offset_take) state_d = Draw;
      Draw:    if (sampler_ready) state_d = Drain;
      Drain:   if (drawn_ready_i && drawn_last_o) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q   <= Idle;
      keys_q    <= '0;
      word_q    <= '0;
      maximum_q <= '0;
      scaled_q  <= 1'b0;
    end else begin
      state_q <= state_d;
      if (row_take) begin
        keys_q <= row_keys_i;
        word_q <= row_word_i;
      end
      if (maximum_valid) maximum_q <= maximum;
      if (offset_take) scaled_q <= 1'b0;
      else if (mass_valid && scale_ready) scaled_q <= 1'b1;
    end
  end

  // Monitors -------------------------------------------------------------------------------------------------------

  assign weight_valid_o  = mass_weight_valid && mass_weight_ready;
  assign weight_weight_o = weight;
  assign mass_valid_o    = mass_valid && offset_take;
  assign mass_mass_o     = mass;
  assign offset_valid_o  = offset_take;
  assign offset_offset_o = offset;

endmodule : score_sampler
