// One head's dense attention after the scores, by multiplication and division (numeric contract 3.8). A baseline: what
// SANTA does with score_sampler and gather_accumulate.
//
// Purpose:    `row` says how many keys; that many `score` beats are stored, and their largest integer part found in
//             passing. A second pass over the score memory makes the weights. The value row of every visible key is
//             requested, in ascending order, and taken HeadDim / Lanes beats a row, multiplied by its weight and added;
//             Z grows beside it; at the end the sums are divided by Z. A row without a visible key requests nothing and
//             gives zeros.
// Memory:     MaxKeys words of ScoreBits + 1 bits (the score, and whether it is visible), one port to write and one to
//             read, synchronous.
// Latency:    Requests run ahead of the values by Outstanding + 1 rows at most.
// Throughput: a step of N visible keys takes 5 + N + HeadDim / Lanes * (N + QuotientBits + 2) cycles.
// Limits:     codes are symmetric. The table is that of the package, so ScoreFrac and WeightBits are the package's.
//             Lanes multipliers.

module softmax_attention #(
  parameter int HeadDim      = santa_pkg::HeadDim,
  // 16, or what of it divides the head dimension
  parameter int Lanes        = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
  parameter int VBits        = santa_pkg::VBits,
  parameter int MaxKeys      = santa_pkg::MaxKeys,
  parameter int Outstanding  = 4,
  parameter int QuotientBits = santa_pkg::VBits + santa_pkg::Sigma + 1
) (
  input  logic                            clk_i,
  input  logic                            rst_ni,

  input  logic                            row_valid_i,
  output logic                            row_ready_o,
  input  logic [santa_pkg::KeysBits-1:0]  row_keys_i,

  input  logic                            score_valid_i,
  output logic                            score_ready_o,
  input  logic [santa_pkg::ScoreBits-1:0] score_score_i,
  input  logic                            score_visible_i,

  output logic                            request_valid_o,
  input  logic                            request_ready_i,
  output logic [santa_pkg::KeyBits-1:0]   request_key_o,

  input  logic                            value_valid_i,
  output logic                            value_ready_o,
  input  logic [Lanes*VBits-1:0]          value_codes_i,

  output logic                            out_valid_o,
  input  logic                            out_ready_i,
  output logic [Lanes*QuotientBits-1:0]   out_codes_o,
  output logic                            out_last_o
);

  localparam int ScoreBits   = santa_pkg::ScoreBits;
  localparam int IntegerBits = santa_pkg::ScoreIntegerPartBits;
  localparam int WeightBits  = santa_pkg::WeightBits;
  localparam int MassBits    = santa_pkg::MassBits;
  localparam int KeyBits     = santa_pkg::KeyBits;
  localparam int KeysBits    = santa_pkg::KeysBits;
  localparam int Beats       = HeadDim / Lanes;
  localparam int BeatBits    = (Beats > 1) ? $clog2(Beats) : 1;
  localparam int RoomBits    = $clog2(Outstanding + 1);
  localparam int QueuedBits  = WeightBits + 1;  // a weight, and whether it is the last

`ifndef SYNTHESIS
  initial begin
    if (MaxKeys < 1 || MaxKeys > (1 << KeyBits)) $fatal(1, "MaxKeys = %0d: 1 to 2^KeyBits is allowed", MaxKeys);
    if (Outstanding < 1 || Outstanding > 64) $fatal(1, "Outstanding = %0d: 1 to 64 is allowed", Outstanding);
  end
`endif

  // First pass: scores into the memory, the maximum in passing -------------------------------------------------------

  logic                   rows_q;     // from the maximum to the last output
  logic                   walk_q;     // the second pass; it may outlast the outputs, over keys that are not visible
  logic [KeysBits-1:0]    keys_q;
  logic [KeysBits-1:0]    place_q;    // key to write or to read
  logic [KeyBits-1:0]     final_q;    // the last visible key
  logic [IntegerBits-1:0] maximum, maximum_q;
  logic                   empty, empty_q;
  logic                   mass_row_ready, maximum_valid, maximum_ready;
  logic                   row_take, score_take, maximum_take;

  assign row_ready_o   = mass_row_ready && !rows_q;
  assign row_take      = row_valid_i && row_ready_o;
  assign score_take    = score_valid_i && score_ready_o;
  assign maximum_ready = 1'b1;
  assign maximum_take  = maximum_valid && maximum_ready;

  logic                  weight_valid, weight_ready, mass_weight_valid, mass_weight_ready;
  logic [WeightBits-1:0] weight;

  // Z itself is summed by softmax_values, beside the rows.
  /* verilator lint_off UNUSEDSIGNAL */
  logic                mass_valid;
  logic [MassBits-1:0] mass_mass;
  /* verilator lint_on UNUSEDSIGNAL */

  mass u_mass (
    .clk_i,
    .rst_ni,
    .row_valid_i      (row_valid_i && !rows_q),
    .row_ready_o      (mass_row_ready),
    .row_keys_i,
    .score_valid_i,
    .score_ready_o,
    .score_integer_i  (score_score_i[ScoreBits-1-:IntegerBits]),
    .score_visible_i,
    .maximum_valid_o  (maximum_valid),
    .maximum_ready_i  (maximum_ready),
    .maximum_integer_o(maximum),
    .maximum_empty_o  (empty),
    .weight_valid_i   (mass_weight_valid),
    .weight_ready_o   (mass_weight_ready),
    .weight_weight_i  (weight),
    .mass_valid_o     (mass_valid),
    .mass_ready_i     (1'b1),
    .mass_mass_o      (mass_mass)
  );

  // Second pass: out of the memory, a request and a weight for each visible key --------------------------------------

  logic [ScoreBits:0] memory [MaxKeys];
  logic [ScoreBits:0] read_q;
  logic [KeyBits-1:0] read_key_q;
  logic               read_valid_q, read, read_take, visible;
  logic               exp_valid, exp_ready;

  assign read            = walk_q && place_q != keys_q && (!read_valid_q || read_take);
  assign visible         = read_q[ScoreBits];
  assign exp_valid       = read_valid_q && (!visible || request_ready_i);
  assign read_take       = exp_valid && exp_ready;
  assign request_valid_o = read_valid_q && visible && exp_ready;
  assign request_key_o   = read_key_q;

  always_ff @(posedge clk_i) begin
    if (score_take) memory[place_q[KeyBits-1:0]] <= {score_visible_i, score_score_i};
    if (read) read_q <= memory[place_q[KeyBits-1:0]];
  end

  exp2_weight u_exp2_weight (
    .clk_i,
    .rst_ni,
    .score_valid_i  (exp_valid),
    .score_ready_o  (exp_ready),
    .score_score_i  (read_q[ScoreBits-1:0]),
    .score_maximum_i(maximum_q),
    .score_visible_i(visible),
    .weight_valid_o (weight_valid),
    .weight_ready_i (weight_ready),
    .weight_weight_o(weight)
  );

  // Weights of requested rows wait for their values ------------------------------------------------------------------

  logic weighed_visible_q, weighed_final_q;  // of the key whose weight exp2_weight holds
  logic [Outstanding*QueuedBits-1:0] queue_q, queue_popped, queue_d;
  logic [RoomBits-1:0] queued_q, queued_popped;
  logic room, push, pop;

  assign room              = queued_q != RoomBits'(Outstanding);
  assign weight_ready      = mass_weight_ready && (!weighed_visible_q || room);
  assign mass_weight_valid = weight_valid && (!weighed_visible_q || room);
  assign push              = weight_valid && weight_ready && weighed_visible_q;
  assign queue_popped      = pop ? queue_q >> QueuedBits : queue_q;
  assign queued_popped     = queued_q - RoomBits'(pop);

  for (genvar e = 0; e < Outstanding; e++) begin : gen_queue
    assign queue_d[e*QueuedBits+:QueuedBits] = (push && queued_popped == RoomBits'(e)) ?
        {weighed_final_q, weight} : queue_popped[e*QueuedBits+:QueuedBits];
  end

  // Values -----------------------------------------------------------------------------------------------------------

  logic [BeatBits-1:0] beat_q;
  logic fed_q;  // the empty step's row of weight 0 has gone in
  logic in_valid, in_ready, in_last, in_take, beat_last;

  assign beat_last     = beat_q == BeatBits'(Beats - 1);
  assign in_valid      = rows_q && (empty_q ? !fed_q : queued_q != '0 && value_valid_i);
  assign in_last       = empty_q || queue_q[WeightBits];
  assign in_take       = in_valid && in_ready;
  assign value_ready_o = queued_q != '0 && in_ready;
  assign pop           = in_take && beat_last && !empty_q;

  softmax_values #(
    .HeadDim     (HeadDim),
    .Lanes       (Lanes),
    .VBits       (VBits),
    .QuotientBits(QuotientBits)
  ) u_softmax_values (
    .clk_i,
    .rst_ni,
    .in_valid_i (in_valid),
    .in_ready_o (in_ready),
    .in_weight_i(empty_q ? '0 : queue_q[WeightBits-1:0]),
    .in_values_i(empty_q ? '0 : value_codes_i),
    .in_last_i  (in_last),
    .out_valid_o,
    .out_ready_i,
    .out_codes_o,
    .out_last_o
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      rows_q            <= 1'b0;
      walk_q            <= 1'b0;
      keys_q            <= '0;
      place_q           <= '0;
      final_q           <= '0;
      maximum_q         <= '0;
      empty_q           <= 1'b0;
      read_valid_q      <= 1'b0;
      read_key_q        <= '0;
      weighed_visible_q <= 1'b0;
      weighed_final_q   <= 1'b0;
      queue_q           <= '0;
      queued_q          <= '0;
      beat_q            <= '0;
      fed_q             <= 1'b0;
    end else begin
      if (row_take) begin
        keys_q  <= row_keys_i;
        place_q <= '0;
        walk_q  <= 1'b0;
      end
      if (score_take) begin
        place_q <= place_q + KeysBits'(1);
        if (score_visible_i) final_q <= place_q[KeyBits-1:0];
      end
      if (maximum_take) begin
        rows_q    <= 1'b1;
        walk_q    <= 1'b1;
        place_q   <= '0;
        maximum_q <= maximum;
        empty_q   <= empty;
        fed_q     <= 1'b0;
      end
      if (read) begin
        place_q    <= place_q + KeysBits'(1);
        read_key_q <= place_q[KeyBits-1:0];
      end
      if (read || read_take) read_valid_q <= read;
      if (read_take) begin
        weighed_visible_q <= visible;
        weighed_final_q   <= read_key_q == final_q;
      end
      queue_q  <= queue_d;
      queued_q <= queued_popped + RoomBits'(push);
      if (in_take) beat_q <= beat_last ? '0 : beat_q + BeatBits'(1);
      if (in_take && beat_last && empty_q) fed_q <= 1'b1;
      if (out_valid_o && out_ready_i && out_last_o) rows_q <= 1'b0;
    end
  end

endmodule : softmax_attention
