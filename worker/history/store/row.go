package store

import "time"

// Version is the version of the files' format. It changes if a column changes its meaning or is removed. A new column does
// not change the version.
const Version = 1

// A Row describes one session at the time of a Sweep. Times are microseconds since 1970 in UTC; zero is unknown. An empty
// string is unknown too.
type Row struct {
	Time       int64  `json:"t,omitempty"       parquet:"time,timestamp(microsecond),dict"`
	PID        int32  `json:"pid"               parquet:"pid"`
	Start      int64  `json:"start,omitempty"   parquet:"backend_start,timestamp(microsecond),dict"`
	Type       string `json:"type,omitempty"    parquet:"backend_type,dict"`
	DatabaseID uint32 `json:"dbid,omitempty"    parquet:"database_oid,dict"`
	Database   string `json:"db,omitempty"      parquet:"database,dict"`
	UserID     uint32 `json:"uid,omitempty"     parquet:"user_oid,dict"`
	User       string `json:"user,omitempty"    parquet:"user,dict"`
	App        string `json:"app,omitempty"     parquet:"application_name,dict"`
	Client     string `json:"client,omitempty"  parquet:"client,dict"`
	State      string `json:"state,omitempty"   parquet:"state,dict"`
	XactStart  int64  `json:"xact,omitempty"    parquet:"xact_start,timestamp(microsecond),dict"`
	QueryStart int64  `json:"query,omitempty"   parquet:"query_start,timestamp(microsecond),dict"`
	StateStart int64  `json:"since,omitempty"   parquet:"state_start,timestamp(microsecond),dict"`
	WaitType   string `json:"wtype,omitempty"   parquet:"wait_event_type,dict"`
	WaitEvent  string `json:"wait,omitempty"    parquet:"wait_event,dict"`
	WaitStart  int64  `json:"wstart,omitempty"  parquet:"wait_start,timestamp(microsecond),dict"` // begin of the wait for a heavyweight lock
	QueryID    int64  `json:"qid,omitempty"     parquet:"query_id,dict"`
	Query      string `json:"text,omitempty"    parquet:"query,dict"` // the text, as the recorder's option Texts allows
	PhraseKey  string `json:"pkey,omitempty"    parquet:"phrase_key,dict"`
	Phrase     string `json:"phrase,omitempty"  parquet:"phrase,dict"`
	Plan       string `json:"plan,omitempty"    parquet:"plan,dict"`    // the running node of the plan, with rounded figures
	Function   string `json:"plpgsql,omitempty" parquet:"plpgsql,dict"` // function and line of PL/pgSQL
	Leader     int32  `json:"leader,omitempty"  parquet:"leader_pid,dict"`
	Stack      int64  `json:"stack,omitempty"   parquet:"stack,dict"`  // Stack.ID; zero: no stack is known
	Method     string `json:"method,omitempty"  parquet:"method,dict"` // how the stack was taken
	Ended      bool   `json:"ended,omitempty"   parquet:"ended"`       // the session ended, or became idle, since the sweep before

	BlockedBy []Blocker `json:"by,omitempty" parquet:"blocked_by,list"`
}

// Does returns the phrase, followed by the running node of the plan if it is known.
func (r *Row) Does() string {
	if r.Phrase == "" || r.Plan == "" {
		return r.Phrase + r.Plan
	}
	return r.Phrase + "; " + r.Plan
}

// A Blocker is a process that another one waits for.
type Blocker struct {
	PID    int32  `json:"pid"              parquet:"pid"` // 0: a prepared transaction, which has no process
	Lock   string `json:"lock,omitempty"   parquet:"lock,dict"`
	Mode   string `json:"mode,omitempty"   parquet:"mode,dict"` // the mode that the waiter wants
	Object string `json:"object,omitempty" parquet:"object,dict"`
	Soft   bool   `json:"soft,omitempty"   parquet:"soft"` // the blocker waits for the lock too, earlier in the queue
}

// A Stack is a call stack, with the function names that the recorder knew when it first took this stack.
type Stack struct {
	ID     int64    `json:"id"            parquet:"id"`          // a hash of build-ids and offsets
	Frames []string `json:"frames"        parquet:"frames,list"` // from the innermost outwards
	Cut    string   `json:"cut,omitempty" parquet:"cut,dict"`    // why the stack ends before its outermost frame; empty: it is complete
}

// A Sum adds up the samples of a minute or an hour that have equal properties: wait event, query, type, database, user and
// application. TopStack is the stack that most of these samples have; zero: none has a stack.
type Sum struct {
	Time      int64   `parquet:"time,timestamp(microsecond),dict"` // begin of the span
	Seconds   int32   `parquet:"bucket_seconds,dict"`              // length of the span: a minute or an hour
	WaitType  string  `parquet:"wait_event_type,dict"`
	WaitEvent string  `parquet:"wait_event,dict"`
	QueryID   int64   `parquet:"query_id,dict"`
	Type      string  `parquet:"backend_type,dict"`
	Database  string  `parquet:"database,dict"`
	User      string  `parquet:"user,dict"`
	App       string  `parquet:"application_name,dict"`
	Samples   int64   `parquet:"samples"`
	Weight    float64 `parquet:"active_seconds"` // sum of the samples' periods (Sweep.Period), in seconds
	Query     string  `parquet:"query,dict"`
	TopStack  int64   `parquet:"top_stack,dict"`
	TopCount  int64   `parquet:"top_samples"`
}

// A Sweep has the sessions that the recorder found when it read the server's memory once.
type Sweep struct {
	Time   time.Time     `json:"-"`
	Period time.Duration `json:"period,omitempty"` // time since the sweep before, for which each row counts
	Delay  time.Duration `json:"delay,omitempty"`  // how much later than planned the sweep began
	Lost   int           `json:"lost,omitempty"`   // earlier sweeps that could not be written
	Note   string        `json:"note,omitempty"`   // missing parts of this sweep, and the reason
	Rows   []Row         `json:"rows,omitempty"`
	Stacks []Stack       `json:"stacks,omitempty"` // in the journal: only stacks that it does not have yet
}

// A SweepInfo is one sweep without its rows. A minute with a SweepInfo but no rows had no work. A minute without a SweepInfo
// was not recorded.
type SweepInfo struct {
	Time   int64   `parquet:"time,timestamp(microsecond),delta"`
	Period float64 `parquet:"period_seconds"`
	Delay  float64 `parquet:"delay_seconds"`
	Lost   int32   `parquet:"lost_sweeps"`
	Rows   int32   `parquet:"rows"`
	Note   string  `parquet:"note,dict"`
}

func infoOf(s *Sweep) SweepInfo {
	return SweepInfo{Time: s.Time.UnixMicro(), Period: s.Period.Seconds(), Delay: s.Delay.Seconds(), Lost: int32(min(s.Lost, 1<<30)),
		Rows: int32(len(s.Rows)), Note: s.Note}
}

// Meta describes the server and the recorder. The metadata of each file contains it.
type Meta struct {
	SystemID      string `json:"system_identifier"`
	Timeline      uint32 `json:"timeline,omitempty"`
	ServerVersion string `json:"server_version,omitempty"`
	Host          string `json:"host,omitempty"`
	DataDir       string `json:"data_directory,omitempty"`
	Recorder      string `json:"recorder,omitempty"` // version and options of the recorder
}
