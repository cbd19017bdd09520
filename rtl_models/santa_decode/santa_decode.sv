// One decode step of a KV head and its Group query heads (numeric contract 3.2 to 3.7).
//
// Purpose:    query codes, key codes and words in; requests for value rows out; value codes in; output codes out. The
//             phases follow each other: query, score, mass, offset, sampler, value, output. All heads share the mask and
//             the keys, so that they run in lockstep: control stands once, head 0's handshakes are everybody's, and the
//             datapaths (mac_dot, or ternary_query and ternary_dot; score_sampler; gather_accumulate) stand Group times.
//             A value row is requested once for the group, in ascending order, whichever heads drew it.
// Latency:    see step_cycles and control_cycles in santa_hw/cycles.py, exact if nothing idles or stalls.
// Throughput: one step at a time.
// Limits:     systematic sampling, one exponent a query. Words come from outside. Values return in order, at any time
//             after their request; up to Outstanding requests run ahead of them (1 costs a cycle a row). `score`,
//             `weight`, `mass`, `offset` and `accumulator` are monitors: valid without ready, dropped by a synthesiser
//             when nothing is connected. With ternary scores there is no multiplier; with dense ones they are mac_dot's.

module santa_decode #(
  parameter int Group        = 1,
  parameter int HeadDim      = santa_pkg::HeadDim,
  // 16, or what of it divides the head dimension
  parameter int Lanes        = (santa_pkg::HeadDim % 16 == 0) ? 16 : (santa_pkg::HeadDim & -santa_pkg::HeadDim),
  parameter int Outstanding  = 4,
  parameter int ShiftBits    = 9,  // holds every shift that a design can ask for
  parameter bit Ternary      = santa_pkg::Ternary != 0,
  parameter bit CommonOutput = santa_pkg::CommonOutput != 0
) (
  input  logic                                              clk_i,
  input  logic                                              rst_ni,

  // A step of so many keys; none takes no head, no query, no key and gives zeros.
  input  logic                                              step_valid_i,
  output logic                                              step_ready_o,
  input  logic [santa_pkg::KeysBits-1:0]                    step_keys_i,

  // Once a step: the shift from a dot product to a score, and the offset's word, of each head.
  input  logic                                              head_valid_i,
  output logic                                              head_ready_o,
  input  logic [Group*ShiftBits-1:0]                        head_shifts_i,
  input  logic [Group*santa_pkg::RngBits-1:0]               head_words_i,

  // Feature i of all heads; with ternary scores its words too.
  input  logic                                              query_valid_i,
  output logic                                              query_ready_o,
  input  logic [Group*santa_pkg::QBits-1:0]                 query_codes_i,

  input  logic                                              word_valid_i,
  output logic                                              word_ready_o,
  input  logic [Group*santa_pkg::RngBits-1:0]               word_words_i,

  input  logic                                              key_valid_i,
  output logic                                              key_ready_o,
  input  logic [Lanes*santa_pkg::KBits-1:0]                 key_codes_i,
  input  logic                                              key_visible_i,  // the same in all beats of a key

  output logic                                              request_valid_o,
  input  logic                                              request_ready_i,
  output logic [santa_pkg::KeyBits-1:0]                     request_key_o,
  output logic [Group*santa_pkg::CountBits-1:0]             request_counts_o,

  input  logic                                              value_valid_i,
  output logic                                              value_ready_o,
  input  logic [Lanes*santa_pkg::VBits-1:0]                 value_codes_i,

  // With a common output format: how far each lane's binary point moves.
  input  logic                                              format_valid_i,
  output logic                                              format_ready_o,
  input  logic [Lanes*ShiftBits-1:0]                        format_shifts_i,

  output logic                                              output_valid_o,
  input  logic                                              output_ready_i,
  output logic [Group*Lanes*santa_pkg::OutputBits-1:0]      output_codes_o,
  output logic [Group*Lanes-1:0]                            output_saturated_o,
  output logic                                              output_last_o,

  output logic                                              score_valid_o,
  output logic [Group*santa_pkg::ScoreBits-1:0]             score_scores_o,

  output logic                                              weight_valid_o,
  output logic [Group*santa_pkg::WeightBits-1:0]            weight_weights_o,

  output logic                                              mass_valid_o,
  output logic [Group*santa_pkg::MassBits-1:0]              mass_masses_o,

  output logic                                              offset_valid_o,
  output logic [Group*santa_pkg::MassBits-1:0]              offset_offsets_o,

  output logic                                              accumulator_valid_o,
  output logic [Group*Lanes*santa_pkg::AccumulatorBits-1:0] accumulator_accumulators_o
);

  localparam int QBits       = santa_pkg::QBits;
  localparam int RngBits     = santa_pkg::RngBits;
  localparam int Beta        = santa_pkg::Beta;
  localparam int SumBits     = santa_pkg::ScoreAccumulatorBits;
  localparam int ScoreBits   = santa_pkg::ScoreBits;
  localparam int WeightBits  = santa_pkg::WeightBits;
  localparam int MassBits    = santa_pkg::MassBits;
  localparam int CountBits   = santa_pkg::CountBits;
  localparam int AccBits     = santa_pkg::AccumulatorBits;
  localparam int KeyBits     = santa_pkg::KeyBits;
  localparam int KeysBits    = santa_pkg::KeysBits;
  localparam int Beats       = HeadDim / Lanes;
  localparam int BeatBits    = (Beats > 1) ? $clog2(Beats) : 1;
  localparam int FeatureBits = (HeadDim > 1) ? $clog2(HeadDim) : 1;

  // Draw is all from the last key to the last value row.
  typedef enum logic [2:0] {Idle, Head, Query, Score, Draw, Output} state_e;

  state_e state_q, state_d;

  // Dot products ---------------------------------------------------------------------------------------------------

  logic [FeatureBits-1:0]   feature_q;
  logic [BeatBits-1:0]      beat_q;   // of a key, then of a value row
  logic [KeysBits-1:0]      keys_q;   // keys still to come
  logic                     query_valid, feature_take, feature_last;
  logic                     key_valid, key_take, key_last, beat_last;
  logic [Group-1:0]         dot_query_ready, dot_key_ready, sum_valid, sum_last;
  logic                     sum_ready;
  logic [Group*SumBits-1:0] sums;

  assign query_valid  = query_valid_i && state_q == Query;
  assign key_valid    = key_valid_i && state_q == Score;
  assign key_last     = keys_q == KeysBits'(1);
  assign beat_last    = beat_q == BeatBits'(Beats - 1);
  assign feature_last = feature_q == FeatureBits'(HeadDim - 1);
  assign feature_take = query_valid_i && query_ready_o;
  assign key_ready_o  = state_q == Score && dot_key_ready[0];
  assign key_take     = key_valid_i && key_ready_o;

  if (Ternary) begin : gen_ternary
    logic             word_valid;
    logic [Group-1:0] query_ready, word_ready, count_valid;
    logic             unused_ready;
    assign unused_ready  = ^{query_ready, word_ready};
    assign word_valid    = word_valid_i && state_q == Query;
    assign query_ready_o = state_q == Query && query_ready[0];
    assign word_ready_o  = state_q == Query && word_ready[0];

    for (genvar g = 0; g < Group; g++) begin : gen_head
      logic [Beta+1:0] count;

      ternary_query u_ternary_query (
        .clk_i,
        .rst_ni,
        .query_valid_i (query_valid),
        .query_ready_o (query_ready[g]),
        .query_code_i  (query_codes_i[g*QBits+:QBits]),
        .word_valid_i  (word_valid),
        .word_ready_o  (word_ready[g]),
        .word_word_i   (word_words_i[g*RngBits+:RngBits]),
        .count_valid_o (count_valid[g]),
        .count_ready_i (dot_query_ready[g]),
        .count_count_o (count)
      );

      ternary_dot #(
        .HeadDim (HeadDim),
        .Lanes   (Lanes),
        .Planes  (1'b1),
        .SumBits (SumBits)
      ) u_ternary_dot (
        .clk_i,
        .rst_ni,
        .query_valid_i (count_valid[g]),
        .query_ready_o (dot_query_ready[g]),
        .query_count_i (count),
        .key_valid_i   (key_valid),
        .key_ready_o   (dot_key_ready[g]),
        .key_codes_i,
        .key_last_i    (key_last),
        .sum_valid_o   (sum_valid[g]),
        .sum_ready_i   (sum_ready),
        .sum_sum_o     (sums[g*SumBits+:SumBits]),
        .sum_last_o    (sum_last[g])
      );
    end
  end else begin : gen_dense
    assign query_ready_o = state_q == Query && dot_query_ready[0];
    assign word_ready_o  = 1'b0;

    logic unused_words;
    assign unused_words = ^{word_valid_i, word_words_i};

    for (genvar g = 0; g < Group; g++) begin : gen_head
      mac_dot #(
        .HeadDim (HeadDim),
        .Lanes   (Lanes),
        .SumBits (SumBits)
      ) u_mac_dot (
        .clk_i,
        .rst_ni,
        .query_valid_i (query_valid),
        .query_ready_o (dot_query_ready[g]),
        .query_code_i  (query_codes_i[g*QBits+:QBits]),
        .key_valid_i   (key_valid),
        .key_ready_o   (dot_key_ready[g]),
        .key_codes_i,
        .key_last_i    (key_last),
        .sum_valid_o   (sum_valid[g]),
        .sum_ready_i   (sum_ready),
        .sum_sum_o     (sums[g*SumBits+:SumBits]),
        .sum_last_o    (sum_last[g])
      );
    end
  end

  // Scores: a lane a head. `visible` goes beside the sums, which leave a dot product in the cycle after the key's last
  // beat, and beside the scores.
  logic [Group*ShiftBits-1:0] shifts_q;
  logic [Group*ScoreBits-1:0] scores;
  logic [Group-1:0]           sampler_score_ready;
  logic                       sum_visible_q, score_visible_q, score_valid, score_take;
  logic [Group:0]             unused_scores;

  shift_normalise #(
    .Lanes     (Group),
    .InBits    (SumBits),
    .OutBits   (ScoreBits),
    .ShiftBits (ShiftBits)
  ) u_score (
    .clk_i,
    .rst_ni,
    .in_valid_i      (sum_valid[0]),
    .in_ready_o      (sum_ready),
    .in_codes_i      (sums),
    .in_shifts_i     (shifts_q),
    .in_last_i       (sum_last[0]),
    .out_valid_o     (score_valid),
    .out_ready_i     (sampler_score_ready[0]),
    .out_codes_o     (scores),
    .out_saturated_o (unused_scores[Group-1:0]),
    .out_last_o      (unused_scores[Group])
  );

  assign score_take = score_valid && sampler_score_ready[0];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      sum_visible_q   <= 1'b0;
      score_visible_q <= 1'b0;
    end else begin
      if (key_take && beat_last) sum_visible_q <= key_visible_i;
      if (sum_valid[0] && sum_ready) score_visible_q <= sum_visible_q;
    end
  end

  // Drawn keys -----------------------------------------------------------------------------------------------------

  logic [Group-1:0]           row_ready, drawn_valid, drawn_last, pop, weight_valid, mass_valid, offset_valid;
  logic [Group*KeyBits-1:0]   drawn_keys;
  logic [Group*CountBits-1:0] drawn_counts;
  logic                       head_valid, head_take;

  assign head_valid   = head_valid_i && state_q == Head;
  assign head_ready_o = state_q == Head && row_ready[0];
  assign head_take    = head_valid && row_ready[0];

  for (genvar g = 0; g < Group; g++) begin : gen_sampler
    score_sampler u_score_sampler (
      .clk_i,
      .rst_ni,
      .row_valid_i     (head_valid),
      .row_ready_o     (row_ready[g]),
      .row_keys_i      (keys_q),
      .row_word_i      (head_words_i[g*RngBits+:RngBits]),
      .score_valid_i   (score_valid),
      .score_ready_o   (sampler_score_ready[g]),
      .score_score_i   (scores[g*ScoreBits+:ScoreBits]),
      .score_visible_i (score_visible_q),
      .drawn_valid_o   (drawn_valid[g]),
      .drawn_ready_i   (pop[g]),
      .drawn_key_o     (drawn_keys[g*KeyBits+:KeyBits]),
      .drawn_count_o   (drawn_counts[g*CountBits+:CountBits]),
      .drawn_last_o    (drawn_last[g]),
      .weight_valid_o  (weight_valid[g]),
      .weight_weight_o (weight_weights_o[g*WeightBits+:WeightBits]),
      .mass_valid_o    (mass_valid[g]),
      .mass_mass_o     (mass_masses_o[g*MassBits+:MassBits]),
      .offset_valid_o  (offset_valid[g]),
      .offset_offset_o (offset_offsets_o[g*MassBits+:MassBits])
    );
  end

  // Merge: the smallest key that a head has drawn and not yet asked for, with the count of every head that drew it. A
  // row that no head counts (a step without mass, or without keys) is not requested, but clears the accumulators.
  logic [Group-1:0]           match, finished_q, finished_d;
  logic [KeyBits-1:0]         smallest;
  logic [Group*CountBits-1:0] counts;
  logic                       merge_valid, merge_null, merge_take, room;

  always_comb begin
    smallest = '1;
    for (int g = 0; g < Group; g++) begin
      if (drawn_valid[g] && drawn_keys[g*KeyBits+:KeyBits] < smallest) smallest = drawn_keys[g*KeyBits+:KeyBits];
    end
    match  = '0;
    counts = '0;
    for (int g = 0; g < Group; g++) begin
      if (drawn_valid[g] && drawn_keys[g*KeyBits+:KeyBits] == smallest) begin
        match[g] = 1'b1;
        counts[g*CountBits+:CountBits] = drawn_counts[g*CountBits+:CountBits];
      end
    end
  end

  assign merge_valid = state_q == Draw && &(drawn_valid | finished_q) && !(&finished_q) && room;
  assign merge_null  = counts == '0;
  assign merge_take  = merge_valid && (merge_null || request_ready_i);
  assign pop         = merge_take ? match : '0;
  assign finished_d  = finished_q | (match & drawn_last);

  assign request_valid_o  = merge_valid && !merge_null;
  assign request_key_o    = smallest;
  assign request_counts_o = counts;

  // Rows under way: counts, which heads end with the row, and whether the step does --------------------------------

  localparam int RowBits  = Group * (CountBits + 1) + 1;
  localparam int RowsBits = $clog2(Outstanding + 1);

  logic [Outstanding*RowBits-1:0] rows_q, rows_d;  // the oldest in the low bits
  logic [RowsBits-1:0]            count_q, count_d, place;
  logic [RowBits-1:0]             row;
  logic                           push, row_done;

  assign room  = count_q != RowsBits'(Outstanding);
  assign push  = merge_take || (step_valid_i && state_q == Idle && step_keys_i == '0);
  assign row   = (state_q == Idle) ? {1'b1, {Group{1'b1}}, {(Group * CountBits) {1'b0}}}
                                   : {&finished_d, match & drawn_last, counts};
  assign place = row_done ? count_q - RowsBits'(1) : count_q;
  assign count_d = push ? place + RowsBits'(1) : place;

  always_comb begin
    rows_d = row_done ? rows_q >> RowBits : rows_q;
    for (int i = 0; i < Outstanding; i++) begin
      if (push && place == RowsBits'(i)) rows_d[i*RowBits+:RowBits] = row;
    end
  end

  // Value rows: a beat is done when every head that counts the row has added it; one with a smaller count waits.
  logic [Group*CountBits-1:0] row_counts;
  logic [Group-1:0]           row_lasts, wanted, added_q, gather_ready;
  logic                       row_valid, row_null, row_final, beat_valid, beat_ready, beat_take;

  assign {row_final, row_lasts, row_counts} = rows_q[RowBits-1:0];

  assign row_valid     = count_q != '0;
  assign row_null      = row_counts == '0;
  assign beat_valid    = row_valid && (row_null || value_valid_i);
  assign beat_ready    = &(~wanted | added_q | gather_ready);
  assign beat_take     = beat_valid && beat_ready;
  assign row_done      = beat_take && beat_last;
  assign value_ready_o = row_valid && !row_null && beat_ready;

  for (genvar g = 0; g < Group; g++) begin : gen_wanted
    assign wanted[g] = row_null || row_counts[g*CountBits+:CountBits] != '0;
  end

  // Accumulators ---------------------------------------------------------------------------------------------------

  logic [Group-1:0]               gather_valid, gather_last;
  logic                           drain_valid, drain_ready, drain_take;
  logic [Group*Lanes*AccBits-1:0] accumulators;

  for (genvar g = 0; g < Group; g++) begin : gen_gather
    gather_accumulate #(
      .HeadDim (HeadDim),
      .Lanes   (Lanes)
    ) u_gather_accumulate (
      .clk_i,
      .rst_ni,
      .in_valid_i         (beat_valid && wanted[g] && !added_q[g]),
      .in_ready_o         (gather_ready[g]),
      .in_count_i         (row_counts[g*CountBits+:CountBits]),
      .in_values_i        (value_codes_i),
      .in_last_i          (row_lasts[g]),
      .out_valid_o        (gather_valid[g]),
      .out_ready_i        (drain_take),
      .out_accumulators_o (accumulators[g*Lanes*AccBits+:Lanes*AccBits]),
      .out_last_o         (gather_last[g])
    );
  end

  assign drain_valid = state_q == Output && &gather_valid;
  assign drain_take  = drain_valid && drain_ready;

  // Output ---------------------------------------------------------------------------------------------------------

  if (CommonOutput) begin : gen_format
    logic format_room;

    assign drain_ready    = format_valid_i && format_room;
    assign format_ready_o = drain_valid && format_room;

    shift_normalise #(
      .Lanes     (Group * Lanes),
      .InBits    (AccBits),
      .OutBits   (santa_pkg::OutputBits),
      .ShiftBits (ShiftBits)
    ) u_output (
      .clk_i,
      .rst_ni,
      .in_valid_i      (drain_valid && format_valid_i),
      .in_ready_o      (format_room),
      .in_codes_i      (accumulators),
      .in_shifts_i     ({Group{format_shifts_i}}),
      .in_last_i       (gather_last[0]),
      .out_valid_o     (output_valid_o),
      .out_ready_i     (output_ready_i),
      .out_codes_o     (output_codes_o),
      .out_saturated_o (output_saturated_o),
      .out_last_o      (output_last_o)
    );
  end else begin : gen_accumulators
    logic unused_format;
    assign unused_format = ^{format_valid_i, format_shifts_i};

    assign drain_ready        = output_ready_i;
    assign format_ready_o     = 1'b0;
    assign output_valid_o     = drain_valid;
    assign output_codes_o     = accumulators;
    assign output_saturated_o = '0;
    assign output_last_o      = gather_last[0];
  end

  // Control --------------------------------------------------------------------------------------------------------

  assign step_ready_o = state_q == Idle;

  always_comb begin
    state_d = state_q;
    case (state_q)
      Idle: begin
        if (step_valid_i) begin
          if (step_keys_i == '0) state_d = Draw;
          else state_d = Head;
        end
      end
      Head:    if (head_take) state_d = Query;
      Query:   if (feature_take && feature_last) state_d = Score;
      Score:   if (key_take && beat_last && key_last) state_d = Draw;
      Draw:    if (row_done && row_final) state_d = Output;
      Output:  if (output_valid_o && output_ready_i && output_last_o) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q    <= Idle;
      keys_q     <= '0;
      shifts_q   <= '0;
      feature_q  <= '0;
      beat_q     <= '0;
      finished_q <= '0;
      rows_q     <= '0;
      count_q    <= '0;
      added_q    <= '0;
    end else begin
      state_q <= state_d;
      count_q <= count_d;
      rows_q  <= rows_d;
      if (step_valid_i && step_ready_o) begin
        keys_q     <= step_keys_i;
        finished_q <= {Group{step_keys_i == '0}};
      end else begin
        if (key_take && beat_last) keys_q <= keys_q - KeysBits'(1);
        if (merge_take) finished_q <= finished_d;
      end
      if (head_take) shifts_q <= head_shifts_i;
      if (feature_take) feature_q <= feature_last ? '0 : feature_q + FeatureBits'(1);
      if (key_take || beat_take) beat_q <= beat_last ? '0 : beat_q + BeatBits'(1);
      if (beat_take) added_q <= '0;
      else if (beat_valid) added_q <= added_q | (wanted & gather_ready);
    end
  end

  // Monitors -------------------------------------------------------------------------------------------------------

  assign score_valid_o              = score_take;
  assign score_scores_o             = scores;
  assign weight_valid_o             = weight_valid[0];
  assign mass_valid_o               = mass_valid[0];
  assign offset_valid_o             = offset_valid[0];
  assign accumulator_valid_o        = drain_take;
  assign accumulator_accumulators_o = accumulators;

  // What only head 0 is asked for.
  logic unused_heads;
  assign unused_heads = ^{sum_valid, sum_last, dot_query_ready, dot_key_ready, sampler_score_ready, row_ready,
                          weight_valid, mass_valid, offset_valid, gather_last};

`ifndef SYNTHESIS
  initial begin
    if (Group < 1 || Group > 16) $fatal(1, "Group = %0d: 1 to 16 is allowed", Group);
    if (Outstanding < 1 || Outstanding > 64) $fatal(1, "Outstanding = %0d: 1 to 64 is allowed", Outstanding);
  end

  // Lockstep, which lets head 0 speak for all.
  always_ff @(posedge clk_i) begin
    assert (&dot_query_ready == |dot_query_ready && &dot_key_ready == |dot_key_ready && &sum_valid == |sum_valid)
    else $fatal(1, "the heads' dot products are out of step");
    assert (&sampler_score_ready == |sampler_score_ready && &weight_valid == |weight_valid)
    else $fatal(1, "the heads' samplers are out of step");
    assert (state_q != Head || &row_ready) else $fatal(1, "a head is still busy with the step before");
  end
`endif

endmodule : santa_decode
