package store

import "time"

// Version is the version of the files' format. It changes if a column changes its meaning or goes; a new column does
// not change it.
const Version = 1

// A Row is what one session did at the time of a sweep. Times are microseconds since 1970 in UTC; zero is unknown. An empty
// string is unknown too.
type Row struct {
	Time       int64  `parquet:"time,timestamp(microsecond),dict" json:"t,omitempty"`
	PID        int32  `parquet:"pid" json:"pid"`
	Start      int64  `parquet:"backend_start,timestamp(microsecond),dict" json:"start,omitempty"`
	Type       string `parquet:"backend_type,dict" json:"type,omitempty"`
	DatabaseID uint32 `parquet:"database_oid,dict" json:"dbid,omitempty"`
	Database   string `parquet:"database,dict" json:"db,omitempty"`
	UserID     uint32 `parquet:"user_oid,dict" json:"uid,omitempty"`
	User       string `parquet:"user,dict" json:"user,omitempty"`
	App        string `parquet:"application_name,dict" json:"app,omitempty"`
	Client     string `parquet:"client,dict" json:"client,omitempty"`
	State      string `parquet:"state,dict" json:"state,omitempty"`
	XactStart  int64  `parquet:"xact_start,timestamp(microsecond),dict" json:"xact,omitempty"`
	QueryStart int64  `parquet:"query_start,timestamp(microsecond),dict" json:"query,omitempty"`
	StateStart int64  `parquet:"state_start,timestamp(microsecond),dict" json:"since,omitempty"`
	WaitType   string `parquet:"wait_event_type,dict" json:"wtype,omitempty"`
	WaitEvent  string `parquet:"wait_event,dict" json:"wait,omitempty"`
	WaitStart  int64  `parquet:"wait_start,timestamp(microsecond),dict" json:"wstart,omitempty"` // of a heavyweight lock
	QueryID    int64  `parquet:"query_id,dict" json:"qid,omitempty"`
	Query      string `parquet:"query,dict" json:"text,omitempty"` // as the recorder was told to keep it
	PhraseKey  string `parquet:"phrase_key,dict" json:"pkey,omitempty"`
	Phrase     string `parquet:"phrase,dict" json:"phrase,omitempty"`
	Plan       string `parquet:"plan,dict" json:"plan,omitempty"`       // the running node of the plan, with rounded figures
	Function   string `parquet:"plpgsql,dict" json:"plpgsql,omitempty"` // function and line of PL/pgSQL
	Leader     int32  `parquet:"leader_pid,dict" json:"leader,omitempty"`
	Stack      int64  `parquet:"stack,dict" json:"stack,omitempty"`   // Stack.ID; zero: no stack was taken
	Method     string `parquet:"method,dict" json:"method,omitempty"` // how the stack was taken
	Ended      bool   `parquet:"ended" json:"ended,omitempty"`        // the session ended, or became idle, since the sweep before

	BlockedBy []Blocker `parquet:"blocked_by,list" json:"by,omitempty"`
}

// Does returns the phrase with what the plan does.
func (r *Row) Does() string {
	if r.Phrase == "" || r.Plan == "" {
		return r.Phrase + r.Plan
	}
	return r.Phrase + "; " + r.Plan
}

// A Blocker is a process that another one waits for.
type Blocker struct {
	PID    int32  `parquet:"pid" json:"pid"` // 0: a prepared transaction
	Lock   string `parquet:"lock,dict" json:"lock,omitempty"`
	Mode   string `parquet:"mode,dict" json:"mode,omitempty"` // the mode that the waiter wants
	Object string `parquet:"object,dict" json:"object,omitempty"`
	Soft   bool   `parquet:"soft" json:"soft,omitempty"` // it waits too, earlier in the queue
}

// A Stack is a call stack, named as of the time at which it was first seen.
type Stack struct {
	ID     int64    `parquet:"id" json:"id"`                  // a hash of build-ids and offsets
	Frames []string `parquet:"frames,list" json:"frames"`     // from the innermost outwards
	Cut    string   `parquet:"cut,dict" json:"cut,omitempty"` // why the stack ends before its outermost frame
}

// A Sum counts the samples of a span that are alike. TopStack is the stack that most of them have.
type Sum struct {
	Time      int64   `parquet:"time,timestamp(microsecond),dict"` // begin of the span
	Seconds   int32   `parquet:"bucket_seconds,dict"`              // length of the span: 60 or 3600
	WaitType  string  `parquet:"wait_event_type,dict"`
	WaitEvent string  `parquet:"wait_event,dict"`
	QueryID   int64   `parquet:"query_id,dict"`
	Type      string  `parquet:"backend_type,dict"`
	Database  string  `parquet:"database,dict"`
	User      string  `parquet:"user,dict"`
	App       string  `parquet:"application_name,dict"`
	Samples   int64   `parquet:"samples"`
	Weight    float64 `parquet:"active_seconds"` // samples times the time between sweeps
	Query     string  `parquet:"query,dict"`
	TopStack  int64   `parquet:"top_stack,dict"`
	TopCount  int64   `parquet:"top_samples"`
}

// A Sweep is all that was seen at one time.
type Sweep struct {
	Time   time.Time     `json:"-"`
	Period time.Duration `json:"period,omitempty"` // time since the sweep before: what each row stands for
	Delay  time.Duration `json:"delay,omitempty"`  // how much later than planned
	Lost   int           `json:"lost,omitempty"`   // earlier sweeps that could not be written
	Note   string        `json:"note,omitempty"`   // missing parts of this sweep, and the reason
	Rows   []Row         `json:"rows,omitempty"`
	Stacks []Stack       `json:"stacks,omitempty"` // that this journal does not have yet
}

// A SweepInfo is one sweep without its rows. It shows whether a minute without rows had no work, or was not recorded.
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

// Meta describes the server and the recorder. It is in the metadata of each file.
type Meta struct {
	SystemID      string `json:"system_identifier"`
	Timeline      uint32 `json:"timeline,omitempty"`
	ServerVersion string `json:"server_version,omitempty"`
	Host          string `json:"host,omitempty"`
	DataDir       string `json:"data_directory,omitempty"`
	Recorder      string `json:"recorder,omitempty"` // version and options of the recorder
}
