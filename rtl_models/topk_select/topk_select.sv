// The k largest scores of a row (numeric contract 3.8), k = Kept. A baseline: what top-k attention does where SANTA samples.
//
// Purpose:    `row` says how many keys; that many `score` beats meet a register file of Kept entries, kept in order. Each
//             entry has a comparator: entries that hold at least the new score stay, the first of the others takes it,
//             and those behind take what their neighbour held. A new score never passes an equal one, so that ties
//             stay with the lowest index. A key that is not visible is passed over.
//             The entries leave by their rank, the largest score first: the file shifts out as it stands, and the first
//             beat has the row's maximum, against which all weights are taken. A row without a visible key gives one
//             beat, key 0, score 0, empty and last.
// Latency:    the first beat is valid in the cycle after the last score.
// Throughput: a score a cycle; a row of N keys takes 1 + N + max(1, min(Kept, visible keys)) cycles.
// Limits:     Kept 1 to 4096, any number: nothing is normalised by a shift here.

module topk_select #(
  parameter int Kept      = santa_pkg::Samples,
  parameter int ScoreBits = santa_pkg::ScoreBits,
  parameter int KeyBits   = santa_pkg::KeyBits,
  parameter int KeysBits  = santa_pkg::KeysBits
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,

  input  logic                 row_valid_i,
  output logic                 row_ready_o,
  input  logic [KeysBits-1:0]  row_keys_i,

  input  logic                 score_valid_i,
  output logic                 score_ready_o,
  input  logic [ScoreBits-1:0] score_score_i,
  input  logic                 score_visible_i,

  output logic                 kept_valid_o,
  input  logic                 kept_ready_i,
  output logic [KeyBits-1:0]   kept_key_o,
  output logic [ScoreBits-1:0] kept_score_o,
  output logic                 kept_empty_o,
  output logic                 kept_last_o
);

`ifndef SYNTHESIS
  initial begin
    if (Kept < 1 || Kept > 4096) $fatal(1, "Kept = %0d: 1 to 4096 is allowed", Kept);
    if (ScoreBits < 2 || ScoreBits > 32) $fatal(1, "ScoreBits = %0d: 2 to 32 is allowed", ScoreBits);
  end
`endif

  localparam int EntryBits = KeyBits + ScoreBits;

  typedef enum logic [1:0] {Idle, Scores, Leave} state_e;

  state_e              state_q, state_d;
  logic [KeysBits-1:0] left_q, left_d;
  logic [KeyBits-1:0]  key_q, key_d;

  // The register file: entry 0 has the largest score. What is not filled is 0.
  logic [Kept*EntryBits-1:0] entries_q, entries_d, inserted, shifted;
  logic [Kept-1:0]           filled_q, filled_d, stays, filled_shifted;
  logic [EntryBits-1:0]      entry;
  logic                      insert, leave;

  assign entry  = {key_q, score_score_i};
  assign insert = state_q == Scores && score_valid_i && score_visible_i;
  assign leave  = state_q == Leave && kept_ready_i;

  for (genvar e = 0; e < Kept; e++) begin : gen_entry
    assign stays[e] =
        filled_q[e] && $signed(entries_q[e*EntryBits+:ScoreBits]) >= $signed(score_score_i);
    if (e == 0) begin : gen_first
      assign inserted[EntryBits-1:0] = stays[0] ? entries_q[EntryBits-1:0] : entry;
    end else begin : gen_next
      assign inserted[e*EntryBits+:EntryBits] = stays[e] ? entries_q[e*EntryBits+:EntryBits] :
          stays[e-1] ? entry : entries_q[(e-1)*EntryBits+:EntryBits];
    end
  end

  assign shifted        = entries_q >> EntryBits;
  assign filled_shifted = filled_q >> 1;

  always_comb begin
    entries_d = entries_q;
    filled_d  = filled_q;
    if (insert) begin
      entries_d   = inserted;
      filled_d    = filled_q << 1;
      filled_d[0] = 1'b1;
    end else if (leave) begin
      entries_d = shifted;
      filled_d  = filled_shifted;
    end
  end

  always_comb begin
    state_d = state_q;
    left_d  = left_q;
    key_d   = key_q;
    case (state_q)
      Idle: begin
        if (row_valid_i) begin
          left_d = row_keys_i;
          key_d  = '0;
          if (row_keys_i == '0) state_d = Leave;
          else state_d = Scores;
        end
      end
      Scores: begin
        if (score_valid_i) begin
          left_d = left_q - KeysBits'(1);
          key_d  = key_q + KeyBits'(1);
          if (left_q == KeysBits'(1)) state_d = Leave;
        end
      end
      Leave: if (kept_ready_i && kept_last_o) state_d = Idle;
      default: state_d = Idle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q   <= Idle;
      left_q    <= '0;
      key_q     <= '0;
      entries_q <= '0;
      filled_q  <= '0;
    end else begin
      state_q   <= state_d;
      left_q    <= left_d;
      key_q     <= key_d;
      entries_q <= entries_d;
      filled_q  <= filled_d;
    end
  end

  assign row_ready_o   = state_q == Idle;
  assign score_ready_o = state_q == Scores;
  assign kept_valid_o  = state_q == Leave;
  assign kept_key_o    = entries_q[ScoreBits+:KeyBits];
  assign kept_score_o  = entries_q[ScoreBits-1:0];
  assign kept_empty_o  = !filled_q[0];
  assign kept_last_o   = filled_shifted[0] == 1'b0;

endmodule : topk_select
