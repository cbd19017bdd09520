  // Properties of ternary_query: codes and words meet in order, none is dropped or used twice, and a feature's count is
  // the contract's, whatever the handshakes of the three streams do.
  //
  // Any one feature is followed: the f_index-th code and its words decide the f_index-th count.
  //
  // Environment: an offered code or word stands until it is taken.

  localparam int FBits = QBits - 1;
  localparam int FWords = Iid ? 1 << Beta : 1;
  localparam int FWide = FBits + Beta + RngBits + 2;

  (* anyconst *) logic [3:0] f_index;
  logic [3:0] f_codes, f_counts;  // codes taken and counts taken, modulo 16
  logic [Beta:0] f_words;         // words of the feature in work
  logic [Beta:0] f_hits;          // of them those below the code, i.i.d.
  logic signed [Beta+1:0] f_count;
  logic f_past;

  wire [FBits:0] f_magnitude = query_code_i[QBits-1] ? -query_code_i : query_code_i;
  wire [FWide-1:0] f_scaled = FWide'(f_magnitude) << (Beta + RngBits);
  wire [FWide-1:0] f_lifted = FWide'(word_word_i) << FBits;
  wire [FWide-1:0] f_stratified = (f_scaled + f_lifted) >> (FBits + RngBits);
  wire f_hit = f_lifted < (FWide'(f_magnitude) << RngBits);
  wire [Beta+1:0] f_drawn = Iid ? (Beta + 2)'(f_hits) + (Beta + 2)'(f_hit) : (Beta + 2)'(f_stratified);

  initial f_past = 1'b0;
  always @(posedge clk_i) begin
    f_past <= 1'b1;
    if (!rst_ni) begin
      f_codes <= '0;
      f_counts <= '0;
      f_words <= '0;
      f_hits <= '0;
    end else begin
      if (word_valid_i && word_ready_o) begin
        f_words <= f_words == FWords - 1 ? '0 : f_words + 1;
        f_hits <= f_words == FWords - 1 ? '0 : f_hits + f_hit;
      end
      if (query_valid_i && query_ready_o) begin
        f_codes <= f_codes + 1;
        if (f_codes == f_index) f_count <= query_code_i[QBits-1] ? -f_drawn : f_drawn;
      end
      if (count_valid_o && count_ready_i) f_counts <= f_counts + 1;
    end
  end

  always @(*) begin
    assume (rst_ni == f_past);
    assume (query_code_i != 1 << FBits);
  end
  always @(posedge clk_i) if (f_past && $past(f_past)) begin
    if ($past(query_valid_i) && !$past(query_ready_o)) assume (query_valid_i && $stable(query_code_i));
    if ($past(word_valid_i) && !$past(word_ready_o)) assume (word_valid_i && $stable(word_word_i));
  end

  always @(posedge clk_i) if (f_past) begin
    a_inside: assert (4'(f_codes - f_counts) == 4'(count_valid_o));
    a_words:  assert (f_words < FWords && f_hits <= f_words);
    if (query_valid_i && query_ready_o) begin
      a_joined: assert (word_valid_i && word_ready_o && f_words == FWords - 1);
    end
    if (count_valid_o && f_counts == f_index) begin
      a_count:  assert ($signed(count_count_o) == f_count);
    end
    if ($past(f_past) && $past(count_valid_o) && !$past(count_ready_i)) begin
      a_stable: assert (count_valid_o && $stable(count_count_o));
    end
    c_full: cover (count_valid_o && f_index == 2 && f_counts == f_index && f_count == -(1 << Beta));
  end
