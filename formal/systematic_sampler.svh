  // Properties of systematic_sampler; run.py puts them inside the module. A shadow of the row says what must hold.
  //
  // Environment: a row's mass is the sum of its weights and its offset is below the mass; the weights that arrive are
  // the row's. When they arrive, when rows come and when beats are taken is free.

  localparam int FKeys = 1 << KeyBits;
  localparam int FWide = MassBits + Sigma + 2;

  (* anyseq *) logic [FKeys*WeightBits-1:0] f_next;
  logic [FKeys*WeightBits-1:0] f_weights;
  logic [KeysBits-1:0] f_keys, f_taken;
  logic [MassBits-1:0] f_mass, f_offset;
  logic [FWide-1:0] f_emitted;
  logic [FWide-1:0] f_cycles;  // of the row, those in which the sampler waited for nobody
  logic f_past;

  // Sum of the first `n` weights.
  function automatic logic [FWide-1:0] f_sum(input logic [FKeys*WeightBits-1:0] w, input logic [KeysBits-1:0] n);
    f_sum = '0;
    for (int i = 0; i < FKeys; i++) if (i < n) f_sum = f_sum + w[i*WeightBits +: WeightBits];
  endfunction

  // Thresholds below S * C: how often the keys before have been drawn, by the closed form.
  function automatic logic [FWide-1:0] f_below(input logic [FWide-1:0] c);
    f_below = '0;
    for (int j = 0; j < (1 << Sigma); j++) begin
      if (FWide'(f_offset) + FWide'(f_mass) * j < (c << Sigma)) f_below = f_below + 1;
    end
  endfunction

  wire [FWide-1:0] f_before = f_sum(f_weights, f_taken - KeysBits'(1));  // C without the key in work
  wire [FWide-1:0] f_after = f_sum(f_weights, f_taken);
  wire signed [FWide:0] f_residual = $signed({1'b0, FWide'(f_offset)}) + $signed({1'b0, FWide'(f_mass) * FWide'(total_q)})
                                     - $signed({1'b0, f_after << Sigma});
  wire f_waits = weight_ready_o && !weight_valid_i || drawn_valid_o && !drawn_ready_i;
  wire [FWide-1:0] f_weight = FWide'(f_weights[(f_taken - 1) * WeightBits +: WeightBits]);

  initial f_past = 1'b0;
  always @(posedge clk_i) begin
    f_past <= 1'b1;
    if (!rst_ni) begin
      f_weights <= '0;
      f_keys <= '0;
      f_taken <= '0;
      f_mass <= '0;
      f_offset <= '0;
      f_emitted <= '0;
      f_cycles <= '0;
    end else begin
      if (row_valid_i && row_ready_o) begin
        f_weights <= f_next;
        f_keys <= row_keys_i;
        f_taken <= '0;
        f_mass <= row_mass_i;
        f_offset <= row_offset_i;
        f_emitted <= '0;
        f_cycles <= '0;
      end else if (!row_ready_o && !f_waits) begin
        f_cycles <= f_cycles + 1;
      end
      if (weight_valid_i && weight_ready_o) f_taken <= f_taken + 1;
      if (drawn_valid_o && drawn_ready_i) f_emitted <= f_emitted + drawn_count_o;
    end
  end

  always @(*) begin
    assume (rst_ni == f_past);
    if (row_valid_i) begin
      assume (row_keys_i <= FKeys);
      assume (row_mass_i == f_sum(f_next, row_keys_i));
      assume (row_offset_i < row_mass_i || row_offset_i == 0);
    end
    if (weight_valid_i && f_taken < f_keys) assume (weight_weight_i == f_weights[f_taken * WeightBits +: WeightBits]);
  end

  always @(posedge clk_i) if (f_past) begin
    // What ties the shadow to the registers; it makes the rest inductive.
    a_keys:     assert (f_keys <= FKeys && f_taken <= f_keys);
    a_mass:     assert (f_mass == f_sum(f_weights, f_keys));
    a_offset:   assert (f_offset < f_mass || f_offset == 0);
    if (state_q != Idle) begin
      a_state:  assert (mass_q == f_mass && keys_q == f_keys - f_taken);
    end
    if (state_q == Walk) begin
      a_walk:   assert (keys_q != 0 && key_q == KeyBits'(f_taken) && f_emitted == total_q);
    end
    if (state_q == Draw) begin
      a_draw:   assert (f_taken != 0 && key_q == KeyBits'(f_taken - KeysBits'(1)) && f_mass != 0);
      a_total:  assert (f_emitted + count_q == total_q && count_q < (1 << Sigma));
    end
    if (state_q == Empty) begin
      a_empty:  assert (f_mass == 0 && f_taken == f_keys && f_emitted == 0);
    end

    // The residual is the contract's, and stays in its range: [0, Z) between keys, [-(w << Sigma), 0) while drawing.
    if (state_q == Walk || state_q == Draw) begin
      a_residual: assert (residual_q == f_residual);
    end
    if (state_q == Walk) begin
      a_range_walk: assert (residual_q >= 0 && (residual_q < $signed({1'b0, f_mass}) || f_mass == 0 && residual_q == 0));
    end
    if (state_q == Draw) begin
      a_range_draw: assert (residual_q < 0 && residual_q + $signed({1'b0, f_weight << Sigma}) >= 0);
    end

    // Counts equal the closed form; a key of zero weight is never drawn; keys come in order, each once.
    if (state_q == Walk) begin
      a_closed_walk: assert (total_q == f_below(f_after));
    end
    if (state_q == Draw) begin
      a_closed_draw: assert (total_q - count_q == f_below(f_before));
    end
    if (drawn_valid_o && state_q == Draw) begin
      a_count:    assert (drawn_count_o == f_below(f_after) - f_below(f_before) && drawn_count_o != 0);
      a_weight:   assert (f_weight != 0);
      a_key:      assert (drawn_key_o == KeyBits'(f_taken - KeysBits'(1)));
      a_last:     assert (drawn_last_o == (f_emitted + drawn_count_o == (1 << Sigma)));
    end
    if (drawn_valid_o && state_q == Empty) begin
      a_no_mass:  assert (drawn_key_o == 0 && drawn_count_o == 0 && drawn_last_o);
    end

    // A row that is over has emitted exactly S, or had no mass and emitted one empty beat.
    if ($past(f_past) && $past(state_q) != Idle && state_q == Idle) begin
      a_exactly_s: assert (f_emitted == (f_mass == 0 ? 0 : 1 << Sigma));
      a_all_taken: assert (f_taken == f_keys);
    end

    // Liveness: a row never stands still. Cycles in which neither a weight nor room is waited for each take a key or put
    // the mass on once, so that there are exactly N + S of them, or N + 1 without mass.
    if (state_q == Walk || state_q == Draw) begin
      a_moves:    assert (f_cycles == f_taken + total_q);
    end
    if (state_q == Empty) begin
      a_moves_empty: assert (f_cycles == f_keys);
    end
    if ($past(f_past) && $past(state_q) != Idle && state_q == Idle) begin
      a_ends:     assert (f_cycles == f_keys + (f_mass == 0 ? 1 : 1 << Sigma));
    end

    // The output stream: an offered beat stands, unchanged, until it is taken.
    if ($past(f_past) && $past(drawn_valid_o) && !$past(drawn_ready_i)) begin
      a_stable:   assert (drawn_valid_o && $stable(drawn_key_o) && $stable(drawn_count_o) && $stable(drawn_last_o));
    end

    c_one_holds_all: cover (drawn_valid_o && drawn_ready_i && drawn_count_o == (1 << Sigma) && f_keys == FKeys);
    c_all_drawn:     cover (drawn_valid_o && drawn_last_o && f_emitted == (1 << Sigma) - 1 && drawn_key_o == 2);
    c_no_mass:       cover (drawn_valid_o && state_q == Empty && f_keys == 2);
  end
