package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for the recorded history; see pg_backtrace_history in sql/. The only privilege that is checked is EXECUTE on
// the function. sql/ grants it to pg_read_all_stats, whose members see the texts of all sessions in pg_stat_activity.
var _ = register(Verb{Name: "history", Processes: Any, gate: (*Service).reading, answer: (*Service).answerHistory})

// reading is the gate for the recorder's files: a role may read them with one request at a time.
func (s *Service) reading(ctx context.Context, c call) (func(), error) {
	return s.bounds.files.Acquire(ctx, user(caller(c.Request)), 1)
}

// undefinedObject is the SQLSTATE for an unknown name.
const undefinedObject = "42704"

// Bounds of an answer about the history.
const (
	maxHistoryRows  = 20000
	historyDeadline = 10 * time.Second
)

var (
	errNoHistory = errors.New("the worker records no history")
	errEnough    = errors.New("enough rows")
)

// answerHistory answers with a first row with a notice or "", and then a row for each session in each sweep of the span. A
// sweep is one look of the recorder at all sessions. The setting history has the start and the end of the span in
// microseconds since 1970.
func (s *Service) answerHistory(ctx context.Context, c call) spool.Answer {
	return s.answerRecorded(ctx, c, s.historyRows)
}

// answerRecorded answers with the rows that the callback read returns from the recorder's files. The first row is a
// notice.
func (s *Service) answerRecorded(
	ctx context.Context, c call, read func(context.Context, spool.Request) ([][]string, error),
) spool.Answer {
	req := c.Request
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.options.Deadline, historyDeadline))
	defer cancel()
	rows, err := read(ctx, req)
	a := spool.Answer{Rows: rows}
	if err != nil {
		a = historyFailure(err)
	}
	s.log1(req, func(e *zerolog.Event) {
		e.AnErr("error", err).Int("rows", max(0, len(rows)-1)).Dur("took_ms", time.Since(c.began)).Msg("request")
	})
	return a
}

func (s *Service) historyRows(ctx context.Context, req spool.Request) ([][]string, error) {
	since, until, err := historySpan(req.Settings["history"])
	if err != nil {
		return nil, err
	}
	r, err := s.historyReader()
	if err != nil {
		return nil, err
	}
	return recordedRows(ctx, r, since, until, req.Targets, req.Encoding)
}

// recordedRows returns a first row with a notice, and then whole sweeps of a span, as many as an answer has room for.
// If the first sweep alone is too large, texts of queries are left out, and if it is still too large, the processes
// with the largest PIDs are left out, too. encoding is the encoding of the caller's database.
func recordedRows(ctx context.Context, r *store.Reader, since, until time.Time, pids []int, encoding string) ([][]string, error) {
	rows, size := [][]string{nil}, 0
	var next time.Time // time of the first sweep that is left out
	var notes []string
	summary, err := store.ReadSpan(ctx, r, since, until, func(w *store.SpanSweep, _ *store.Gap) error {
		part, bytes := sweepRows(w, pids, encoding)
		if len(part) == 0 {
			return nil
		}
		if len(rows)-1+len(part) <= maxHistoryRows && size+bytes <= limits.MaxRows {
			rows, size = append(rows, part...), size+bytes
			return nil
		}
		if next = w.Time; len(rows) == 1 { // the next call must not begin with this sweep again
			rows, notes = fitting(rows, part, encoding)
			if next = w.Time.Add(time.Microsecond); !next.Before(until) {
				next = time.Time{}
			}
		}
		return errEnough
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	rows[0] = []string{strings.Join(append(notes, historyNotice(&summary, next)...), "; ")}
	return rows, nil
}

// sweepRows returns the rows of a sweep in the order of PIDs, and the size of their texts in an answer.
func sweepRows(w *store.SpanSweep, pids []int, encoding string) (rows [][]string, size int) {
	sort.SliceStable(w.Rows, func(i, j int) bool {
		a, b := w.Rows[i], w.Rows[j]
		return cmp.Compare(a.PID, b.PID) < 0
	})
	for i := range w.Rows {
		if row := &w.Rows[i]; len(pids) == 0 || slices.Contains(pids, int(row.PID)) {
			cells := historyRow(w, row)
			rows, size = append(rows, cells), size+cellsSize(cells, encoding)
		}
	}
	return rows, size
}

// cellsSize returns the number of bytes of a row in an answer for a database with this encoding.
func cellsSize(cells []string, encoding string) (size int) {
	for _, cell := range cells {
		size += spool.Size(cell, encoding) + 1
	}
	return size
}

// The columns of historyRow that fitting uses.
const (
	historyTime  = 0
	historyPID   = 1
	historyQuery = 17
)

// fitting appends the rows of a sweep that is too large for an answer, without the parts for which there is no room. It
// returns notes on the missing parts.
func fitting(rows, sweep [][]string, encoding string) (list [][]string, notes []string) {
	size := 0
	for _, cells := range sweep {
		size += cellsSize(cells, encoding) - spool.Size(cells[historyQuery], encoding)
	}
	room := limits.MaxRows - size // bytes for texts of queries
	size = 0
	texts := 0
	for i, cells := range sweep {
		if n := spool.Size(cells[historyQuery], encoding); n > max(0, room) {
			cells[historyQuery], texts = "", texts+1
		} else {
			room -= n
		}
		if size += cellsSize(cells, encoding); i == maxHistoryRows || size > limits.MaxRows {
			left := len(sweep) - i
			notes = append(notes, units.Plural(left, "%d {session|sessions} of ")+timeText(cells[historyTime])+
				units.Plural(left, " {is|are} left out, from PID ")+cells[historyPID]+" on: name the processes")
			break
		}
		rows = append(rows, cells)
	}
	if texts > 0 {
		notes = append(notes, units.Plural(texts, "{the text|the texts} of %d {query is|queries are} left out"))
	}
	return rows, notes
}

// timeText returns the time in a cell with microseconds since 1970, as SQL reads it.
func timeText(cell string) string {
	micros, _ := strconv.ParseInt(cell, 10, 64)
	return microText(micros)
}

// historyReader opens the history of the server.
func (s *Service) historyReader() (*store.Reader, error) {
	id, err := s.recordedCluster()
	if err != nil {
		return nil, err
	}
	return store.OpenReader(s.cfg.HistoryDir, id)
}

// recordedCluster returns the system identifier of the server, whose history is recorded.
func (s *Service) recordedCluster() (string, error) {
	if s.cfg.HistoryDir == "" {
		return "", errNoHistory
	}
	server, err := s.cfg.Server()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoServer, err)
	}
	control, err := cluster.ReadControl(server.DataDir)
	if err != nil {
		return "", err
	}
	return control.ID(), nil
}

// historySpan parses the setting history: two times in microseconds since 1970.
func historySpan(text string) (since, until time.Time, err error) {
	first, second, _ := strings.Cut(text, " ")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(second, 10, 64)
	if errors.Join(err1, err2) != nil {
		return since, until, invalid("history", text, "Call pg_backtrace_history.")
	}
	return time.UnixMicro(from), time.UnixMicro(to), nil
}

// historyRow returns the columns of pg_backtrace_history. An empty cell becomes NULL.
func historyRow(w *store.SpanSweep, row *store.Row) []string {
	var blockers, locks []string
	for i := range row.BlockedBy {
		b := &row.BlockedBy[i]
		blockers = append(blockers, strconv.Itoa(int(b.PID)))
		if lock := strings.TrimSpace(b.Lock + " " + b.Mode + " " + b.Object); !slices.Contains(locks, lock) {
			locks = append(locks, lock)
		}
	}
	blockedBy := ""
	if blockers != nil {
		blockedBy = "{" + strings.Join(blockers, ",") + "}"
	}
	id := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	age := func(at int64) string {
		if at == 0 || units.Ahead(w.Time, time.UnixMicro(at)) {
			return ""
		}
		return strconv.FormatFloat(max(0, w.Time.Sub(time.UnixMicro(at)).Seconds()), 'f', 3, 64)
	}
	return []string{
		strconv.FormatInt(w.Time.UnixMicro(), 10), strconv.Itoa(int(row.PID)), id(int64(row.Leader)), row.Type,
		nameOr(row.Database, row.DatabaseID), nameOr(row.User, row.UserID), row.App, row.State, row.WaitType, row.WaitEvent,
		blockedBy, strings.Join(locks, ", "), row.Does(), row.Function, age(row.XactStart), age(row.QueryStart),
		id(row.QueryID), row.Query, id(row.Stack), strconv.FormatBool(row.Ended),
	}
}

// historyNotice returns notes on missing rows. next is the time of the first sweep that is left out; zero: none.
func historyNotice(s *store.Summary, next time.Time) (parts []string) {
	if !next.IsZero() {
		parts = append(parts, "there are more rows: continue with "+microText(next.UnixMicro()))
	}
	if gaps := len(s.Gaps) + s.GapsMore; gaps > 0 && next.IsZero() {
		parts = append(parts, fmt.Sprintf("the span has %s in which nothing was recorded", units.Count(gaps, "gap")))
	}
	if s.Lost > 0 {
		parts = append(parts, units.Count(s.Lost, "sweep")+" could not be written")
	}
	if len(s.Damage) > 0 {
		parts = append(parts, units.Count(len(s.Damage), "file")+" cannot be read whole")
	}
	return parts
}

// historyFailure returns the answer to the SQL caller for an error.
func historyFailure(err error) spool.Answer {
	fault := spool.Answer{Level: "ERROR", SQLState: render.NotInPrerequisiteState}
	switch {
	case errors.Is(err, errNoHistory):
		fault.Message = "the pg_stat_backtrace worker records no history"
		fault.Hint = "Start the worker with --record-dir."
	case errors.Is(err, context.DeadlineExceeded):
		fault.Message = "the history could not be read in time"
		fault.Hint = "Ask for a shorter time, or increase pg_stat_backtrace.timeout."
	case errors.Is(err, store.ErrNoHistory):
		fault.Message = "no history of this server is recorded yet"
	case errors.Is(err, incident.ErrNotFound):
		fault.SQLState, fault.Message = undefinedObject, "there is no such incident"
		fault.Hint = "The view pg_backtrace_incidents lists the incidents."
	case errors.Is(err, incident.ErrUnreadable):
		fault.Message = "the file of the incident cannot be read"
		fault.Hint = "The log of the worker says why."
	default:
		fault = failure(0, err)
		if fault.SQLState == render.InternalError {
			fault.Message = "the history could not be read"
		}
	}
	return fault
}

// nameOr is like store.ObjectName, but returns "" if name is empty and oid is 0.
func nameOr(name string, oid uint32) string {
	if name == "" && oid == 0 {
		return ""
	}
	return store.ObjectName(name, oid)
}
