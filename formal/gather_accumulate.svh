  // Properties of gather_accumulate: no beat is dropped, added twice or added to the wrong slice, whatever the
  // handshakes do. One lane's sum is followed in one slice of the row, in plain arithmetic with a product.
  //
  // Environment: a count and its values stand until they are taken, the counts of a step sum to at most FSamples.

  localparam int FSamples = (1 << CountBits) - 1;

  (* anyconst *) logic [BeatBits-1:0] f_slice;
  logic signed [AccBits-1:0] f_sum;
  logic [CountBits:0] f_total;
  logic [BeatBits-1:0] f_place;  // where the followed slice is, counted from the lowest
  logic f_past;

  wire signed [VBits-1:0] f_value = in_values_i[VBits-1:0];
  wire [HeadDim*AccBits-1:0] f_shifted = acc_q >> (f_place * SliceBits);
  wire signed [AccBits-1:0] f_found = f_shifted[AccBits-1:0];
  // What of the current count is already in the accumulator.
  wire signed [AccBits-1:0] f_partial = drain_q || beat_q != f_slice ? 0 : f_value * $signed({1'b0, done_q});
  wire signed [AccBits-1:0] f_expected = f_sum + f_partial;

  initial f_past = 1'b0;
  always @(posedge clk_i) begin
    f_past <= 1'b1;
    if (!rst_ni) begin
      f_sum <= '0;
      f_total <= '0;
      f_place <= f_slice;
    end else begin
      if (in_take && beat_q == f_slice) begin
        f_sum <= f_sum + f_value * $signed({1'b0, in_count_i});
        f_total <= f_total + in_count_i;
      end
      if (in_take || out_take) f_place <= f_place == 0 ? BeatBits'(Beats - 1) : f_place - 1;
      if (out_take && beat_q == f_slice) f_sum <= '0;
      if (out_take && beat_last) f_total <= '0;
    end
  end

  always @(*) begin
    assume (rst_ni == f_past);
    assume (f_slice < Beats);
    if (in_valid_i) assume (f_total + in_count_i <= FSamples && in_values_i[VBits-1:0] != 1 << (VBits - 1));
  end
  always @(posedge clk_i) if (f_past && $past(f_past)) begin
    if ($past(in_valid_i) && !$past(in_ready_o)) begin
      assume (in_valid_i && $stable(in_values_i) && $stable(in_count_i) && $stable(in_last_i));
    end
  end

  always @(posedge clk_i) if (f_past) begin
    a_beat:  assert (beat_q < Beats && f_place < Beats && 32'(f_place) + beat_q == f_slice + (f_slice < beat_q ? Beats : 0));
    a_done:  assert (done_q == 0 || !drain_q && in_valid_i && done_q < in_count_i);
    // The accumulator holds what has gone in, and the current beat's additions so far.
    a_sum:   assert (f_found == f_expected);
    if (out_valid_o && beat_q == f_slice) begin
      a_out: assert ($signed(out_accumulators_o[AccBits-1:0]) == f_sum);
    end
    a_last:  assert (out_last_o == (beat_q == Beats - 1));
    if ($past(f_past) && $past(out_valid_o) && !$past(out_ready_i)) begin
      a_stable: assert (out_valid_o && $stable(out_accumulators_o) && $stable(out_last_o));
    end
    c_two_rows: cover (out_valid_o && f_total == 5 && f_sum == 3 && beat_q == 1);
  end
