package render

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// JSONTrace is the call stack of a process. Addresses are strings, because not every JSON parser supports 64-bit numbers.
// A member without a value is absent.
type JSONTrace struct {
	PID int `json:"pid"`
	// Phrase describes in words what the process does.
	Phrase *jsonPhrase `json:"phrase,omitempty"`
	// Time is the time at which the state of the session was read.
	Time *time.Time `json:"time,omitempty"`
	// Title is the process title of a server process, as ps shows it.
	Title    string `json:"title,omitempty"`
	Type     string `json:"backend_type,omitempty"`
	Database string `json:"database,omitempty"`
	User     string `json:"user,omitempty"`
	State    string `json:"state,omitempty"`
	// Engine is the method by which the stack was copied: stop, blocked, running, sampled or core.
	Engine string `json:"engine"`
	// NotStop is the reason why the process was not stopped.
	NotStop string `json:"not_stopped,omitempty"`
	// Unknown is the reason why the process was not recognised as a PostgreSQL server process.
	Unknown string `json:"server_not_recognised,omitempty"`
	// NoLevel is the reason why the levels of PL/pgSQL are missing.
	NoLevel string `json:"levels_missing,omitempty"`
	// PauseUS is the time for which the process was stopped, in microseconds.
	PauseUS       float64 `json:"pause_us"`
	WaitEventType string  `json:"wait_event_type,omitempty"`
	WaitEvent     string  `json:"wait_event,omitempty"`
	// Query is the statement that the client sent, at most 1 KiB. QueryTruncated is set if the statement is longer.
	Query          string       `json:"query,omitempty"`
	QueryTruncated bool         `json:"query_truncated,omitempty"`
	Threads        []jsonThread `json:"threads"`
	// GoVersion is the version of Go that built the program.
	GoVersion  string          `json:"go_version,omitempty"`
	Goroutines []jsonGoroutine `json:"goroutines,omitempty"`
	// LeftOut is the number of further goroutines, which are left out because of a limit.
	LeftOut int `json:"goroutines_left_out,omitempty"`
}

// jsonGoroutine is a goroutine. TID is the thread that runs the goroutine; absent: none runs it.
type jsonGoroutine struct {
	ID         uint64      `json:"id"`
	State      string      `json:"state"`
	TID        int         `json:"tid,omitempty"`
	Locked     bool        `json:"locked_to_thread,omitempty"`
	Creator    string      `json:"created_by,omitempty"`
	Parent     uint64      `json:"parent,omitempty"`
	StopReason string      `json:"stop_reason"`
	Frames     []jsonFrame `json:"frames"`
}

// jsonThread is a thread.
type jsonThread struct {
	TID  int    `json:"tid"`
	Name string `json:"name,omitempty"`
	// State is the letter of the thread's state in proc(5).
	State string `json:"state,omitempty"`
	// StopReason is the reason why the walk of the stack ended after the last frame.
	StopReason string `json:"stop_reason"`
	// Kernel has the kernel functions of a thread in uninterruptible sleep, the innermost first.
	Kernel []string    `json:"kernel_stack,omitempty"`
	Frames []jsonFrame `json:"frames"`
}

// jsonFrame is a frame of a stack: a call that has not returned.
type jsonFrame struct {
	// Level is 0 for the innermost frame.
	Level    int    `json:"level"`
	Address  string `json:"address"`
	Function string `json:"function,omitempty"`
	// Derived is set if the name was found from the machine instructions of a stripped program.
	Derived bool `json:"derived,omitempty"`
	// Offset is the offset of the address in the function. ModuleOffset is the address in the image.
	Offset       string `json:"offset,omitempty"`
	Module       string `json:"module,omitempty"`
	BuildID      string `json:"build_id,omitempty"`
	ModuleOffset string `json:"module_offset,omitempty"`
	File         string `json:"file,omitempty"`
	Line         int    `json:"line,omitempty"`
	Inlined      bool   `json:"inlined,omitempty"`
	// Context has the lines of PostgreSQL's CONTEXT for the functions that the frame runs.
	Context []jsonLevel `json:"context,omitempty"`
	Note    string      `json:"note,omitempty"`
}

// jsonLevel is a line of PostgreSQL's CONTEXT: its kind (plpgsql, sql, statement, copy, vacuum), its text in PostgreSQL's words,
// and the parts of the text.
type jsonLevel struct {
	Kind      string `json:"kind"`
	Text      string `json:"text"`
	Function  string `json:"function,omitempty"`
	Line      int    `json:"line,omitempty"`
	Statement string `json:"statement,omitempty"`
	Relation  string `json:"relation,omitempty"`
	Query     string `json:"query,omitempty"`
	Truncated bool   `json:"query_truncated,omitempty"`
}

// jsonPhrase describes in words what a process does.
type jsonPhrase struct {
	// Key is the key of the phrase in doc/phrases.md.
	Key  string `json:"key"`
	Text string `json:"text"`
	// Within is the phrase of the command in which the process does this.
	Within string `json:"within,omitempty"`
	Advice string `json:"advice,omitempty"`
	// Page is a page of PostgreSQL's manual.
	Page string `json:"manual_page,omitempty"`
	// Generic is set if the phrase is not specific, such as "runs a query".
	Generic bool `json:"generic,omitempty"`
}

// JSONEncoder returns the encoder of all commands that print JSON. It writes a line for each value, and escapes characters
// that change the display of the text around them.
func JSONEncoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(VisibleWriter{To: w})
	enc.SetEscapeHTML(false)
	return enc
}

// JSON writes the trace as one line of JSON.
func JSON(w io.Writer, t *backtrace.Trace) error {
	out := JSONTrace{
		PID: t.PID, Engine: t.Engine, NotStop: valid(t.NotStopped), Unknown: t.Unrecognised,
		NoLevel:       t.LevelsMissing,
		PauseUS:       float64(t.Pause.Nanoseconds()) / 1e3,
		WaitEventType: t.Wait.Class, WaitEvent: t.Wait.Event,
		Query: valid(t.Query), QueryTruncated: t.QueryCut,
		Threads: make([]jsonThread, len(t.Threads)),
	}
	for i := range t.Threads {
		out.Threads[i] = newJSONThread(&t.Threads[i])
	}
	out.GoVersion, out.LeftOut = valid(t.Go), t.GoroutinesLeftOut
	for i := range t.Goroutines {
		g := &t.Goroutines[i]
		th := newJSONThread(&g.Thread)
		out.Goroutines = append(out.Goroutines, jsonGoroutine{
			ID: g.ID, State: valid(g.Status), TID: g.TID, Locked: g.Locked, Creator: valid(g.Creator), Parent: g.Parent,
			StopReason: th.StopReason, Frames: th.Frames,
		})
	}
	if p := Phrase(t); p.Key != "" {
		out.Phrase = &jsonPhrase{Key: p.Key, Text: p.Text, Within: p.Within, Advice: p.Advice, Page: p.Page, Generic: p.Generic}
	}
	if s := t.Session; s != nil {
		out.Time, out.Title, out.Type = &s.Time, valid(s.Title), s.Type
		out.Database, out.User, out.State = valid(s.Database), valid(s.User), s.State
	}
	return JSONEncoder(w).Encode(out)
}

func newJSONThread(th *backtrace.Thread) jsonThread {
	out := jsonThread{
		TID: th.TID, Name: valid(th.Name), StopReason: th.Stop, Kernel: th.Kernel,
		Frames: make([]jsonFrame, len(th.Frames)),
	}
	if th.State != 0 {
		out.State = string(rune(th.State))
	}
	for i := range th.Frames {
		f := &th.Frames[i]
		out.Frames[i] = jsonFrame{
			Level: f.Level, Address: hex(f.Address), Function: valid(f.Function), Derived: f.Derived,
			Module: valid(f.Module), BuildID: f.BuildID,
			File: valid(f.File), Line: f.Line, Inlined: f.Inlined, Note: valid(f.Note),
			Context: newJSONLevels(f.Levels),
		}
		if f.Function != "" {
			out.Frames[i].Offset = hex(f.Offset)
		}
		if f.BuildID != "" || f.Function != "" || f.ModuleOffset != 0 {
			out.Frames[i].ModuleOffset = hex(f.ModuleOffset)
		}
	}
	return out
}

func newJSONLevels(levels []backtrace.Level) []jsonLevel {
	out := make([]jsonLevel, 0, len(levels))
	for i := range levels {
		l := &levels[i]
		out = append(out, jsonLevel{
			Kind: string(l.Kind), Text: valid(l.Text), Function: valid(l.Function), Line: l.Line,
			Statement: l.Statement, Relation: valid(l.Relation), Query: valid(l.Query), Truncated: l.Cut,
		})
	}
	return out
}

func hex(v uint64) string { return fmt.Sprintf("0x%x", v) }

// valid replaces bytes that are not UTF-8 by U+FFFD, since JSON requires UTF-8.
func valid(s string) string {
	return strings.ToValidUTF8(s, "\ufffd")
}
