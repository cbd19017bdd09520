  // Properties of shift_normalise: a beat goes through once, in order, and becomes what the contract says.
  //
  // Any one beat is followed: the f_index-th to go in must be the f_index-th to come out.

  localparam int FWide = InBits + (1 << ShiftBits) + 2;

  (* anyconst *) logic [3:0] f_index;
  logic [3:0] f_in, f_out;  // beats in and out, modulo 16: at most one is inside
  logic [Lanes*InBits-1:0] f_codes;
  logic [Lanes*ShiftBits-1:0] f_shifts;
  logic f_last, f_past;

  // half_up, then saturation, in a width where nothing is lost.
  function automatic logic signed [FWide-1:0] f_moved(input logic signed [InBits-1:0] x,
                                                      input logic signed [ShiftBits-1:0] s);
    logic signed [FWide-1:0] wide;
    wide = x;
    if (s <= 0) f_moved = wide << -s;
    else f_moved = (wide + (FWide'(1) << (s - 1))) >>> s;
  endfunction
  localparam signed [FWide-1:0] FHigh = (FWide'(1) << (OutBits - 1)) - 1;

  wire signed [FWide-1:0] f_exact = f_moved(f_codes[InBits-1:0], f_shifts[ShiftBits-1:0]);
  wire signed [FWide-1:0] f_clipped = f_exact > FHigh ? FHigh : f_exact < -FHigh - 1 ? -FHigh - 1 : f_exact;

  initial f_past = 1'b0;
  always @(posedge clk_i) begin
    f_past <= 1'b1;
    if (!rst_ni) begin
      f_in <= '0;
      f_out <= '0;
    end else begin
      if (in_valid_i && in_ready_o) begin
        f_in <= f_in + 1;
        if (f_in == f_index) begin
          f_codes <= in_codes_i;
          f_shifts <= in_shifts_i;
          f_last <= in_last_i;
        end
      end
      if (out_valid_o && out_ready_i) f_out <= f_out + 1;
    end
  end

  always @(*) assume (rst_ni == f_past);

  always @(posedge clk_i) if (f_past) begin
    // Neither dropped nor duplicated: what is inside is what has gone in and not come out.
    a_inside: assert (f_in - f_out == 4'(out_valid_o));
    if (out_valid_o && f_out == f_index) begin
      a_code:      assert ($signed(out_codes_o[OutBits-1:0]) == f_clipped);
      a_saturated: assert (out_saturated_o[0] == (f_clipped != f_exact));
      a_last:      assert (out_last_o == f_last);
    end
    if ($past(f_past) && $past(out_valid_o) && !$past(out_ready_i)) begin
      a_stable: assert (out_valid_o && $stable(out_codes_o) && $stable(out_saturated_o) && $stable(out_last_o));
    end
    c_clipped: cover (out_valid_o && f_out == f_index && out_saturated_o[0] && f_index == 2);
  end
