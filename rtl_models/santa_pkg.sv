// Generated from a design point by santa_hw.rtl.package: do not edit.
// Design: santa 64 q8 k8c v8c s16.5 W16
// Widths in bits; derived widths are those of santa_hw.design.Design.derived().

package santa_pkg;

  /* verilator lint_off UNUSEDPARAM */
  localparam int Samples = 64;
  localparam int HeadDim = 64;
  localparam int MaxKeys = 4096;
  localparam int QBits = 8;
  localparam int KBits = 8;
  localparam int VBits = 8;
  localparam int ScoreBits = 16;
  localparam int ScoreFrac = 5;
  localparam int TernarySamples = 8;
  localparam int RngBits = 32;
  localparam int Sigma = 6;
  localparam int Beta = 3;
  localparam int QueryFactorBits = 8;
  localparam int ScoreAccumulatorBits = 21;
  localparam int ScoreIntegerPartBits = 11;
  localparam int WeightBits = 16;
  localparam int MassBits = 28;
  localparam int OffsetBits = 28;
  localparam int ResidualBits = 29;
  localparam int CountBits = 7;
  localparam int AccumulatorBits = 14;
  localparam int OutputBits = 14;
  localparam int KeyBits = 12;
  localparam int KeysBits = 13;
  localparam int Mitchell = 0;
  localparam int WeightHalfUp = 0;
  localparam int Ternary = 0;
  localparam int TernaryIid = 0;
  localparam int ShiftAdd = 0;
  localparam int CommonOutput = 0;
  /* verilator lint_on UNUSEDPARAM */

  // Weight before the shift: min(round(2^(WeightBits - 1 + f / 2^ScoreFrac)), 2^WeightBits - 1).
  /* verilator lint_off UNUSEDSIGNAL */
  function automatic logic [15:0] exp2_table(input logic [4:0] f);
    case (f)
      5'd0: exp2_table = 16'd32768;
      5'd1: exp2_table = 16'd33486;
      5'd2: exp2_table = 16'd34219;
      5'd3: exp2_table = 16'd34968;
      5'd4: exp2_table = 16'd35734;
      5'd5: exp2_table = 16'd36516;
      5'd6: exp2_table = 16'd37316;
      5'd7: exp2_table = 16'd38133;
      5'd8: exp2_table = 16'd38968;
      5'd9: exp2_table = 16'd39821;
      5'd10: exp2_table = 16'd40693;
      5'd11: exp2_table = 16'd41584;
      5'd12: exp2_table = 16'd42495;
      5'd13: exp2_table = 16'd43425;
      5'd14: exp2_table = 16'd44376;
      5'd15: exp2_table = 16'd45348;
      5'd16: exp2_table = 16'd46341;
      5'd17: exp2_table = 16'd47356;
      5'd18: exp2_table = 16'd48393;
      5'd19: exp2_table = 16'd49452;
      5'd20: exp2_table = 16'd50535;
      5'd21: exp2_table = 16'd51642;
      5'd22: exp2_table = 16'd52773;
      5'd23: exp2_table = 16'd53928;
      5'd24: exp2_table = 16'd55109;
      5'd25: exp2_table = 16'd56316;
      5'd26: exp2_table = 16'd57549;
      5'd27: exp2_table = 16'd58809;
      5'd28: exp2_table = 16'd60097;
      5'd29: exp2_table = 16'd61413;
      5'd30: exp2_table = 16'd62757;
      5'd31: exp2_table = 16'd64132;
      default: exp2_table = 16'd0;
    endcase
  endfunction
  /* verilator lint_on UNUSEDSIGNAL */

endpackage : santa_pkg
