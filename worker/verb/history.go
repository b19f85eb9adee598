package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for the recorded history; see pg_backtrace_history in sql/. EXECUTE on the function is the privilege: it is
// granted as that on the texts of all sessions in pg_stat_activity.
var _ = register(Verb{Name: "history", Processes: Any, gate: (*Service).reading, answer: (*Service).answerHistory})

// reading lets a role read the files of the recorder once at a time.
func (s *Service) reading(ctx context.Context, c call) (func(), error) {
	return s.bounds.trees.Acquire(ctx, user(caller(c.Request)), 1)
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

// answerHistory answers with a row for each session in each sweep of the span, below a row with a notice, which is empty
// if there is none. The setting history has the begin and the end of the span in microseconds since 1970.
func (s *Service) answerHistory(ctx context.Context, c call) spool.Answer {
	return s.answerRecorded(ctx, c, s.historyRows)
}

// answerRecorded answers with rows of the recorder's files, below a row with a notice.
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
	rows, size := [][]string{nil}, 0
	var next time.Time // the first sweep that is left out
	cut := false       // the sweep before it is not whole
	summary, err := store.ReadSpan(ctx, r, since, until, func(w *store.SpanSweep, _ *store.Gap) error {
		before := len(rows)
		for i := range w.Rows {
			row := &w.Rows[i]
			if len(req.Targets) > 0 && !slices.Contains(req.Targets, int(row.PID)) {
				continue
			}
			cells := historyRow(w, row)
			for _, cell := range cells {
				size += len(cell) + 1
			}
			if len(rows) > maxHistoryRows || size > limits.MaxRows {
				if next = w.Time; before == 1 { // no sweep before it: the next call must not begin with this one again
					next, cut = w.Time.Add(time.Microsecond), true
					return errEnough
				}
				rows = rows[:before]
				return errEnough
			}
			rows = append(rows, cells)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	notice := historyNotice(&summary, next)
	if cut {
		notice = "some sessions are left out: name their processes; " + notice
	}
	rows[0] = []string{notice}
	return rows, nil
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

// historySpan parses the setting.
func historySpan(text string) (since, until time.Time, err error) {
	first, second, _ := strings.Cut(text, " ")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(second, 10, 64)
	if errors.Join(err1, err2) != nil {
		return since, until, invalid("history", text, "Call pg_backtrace_history.")
	}
	return time.UnixMicro(from), time.UnixMicro(to), nil
}

// historyRow has the columns of pg_backtrace_history. An empty cell is a NULL.
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
		if at == 0 {
			return ""
		}
		return strconv.FormatFloat(max(0, w.Time.Sub(time.UnixMicro(at)).Seconds()), 'f', 3, 64)
	}
	return []string{
		strconv.FormatInt(w.Time.UnixMicro(), 10), strconv.Itoa(int(row.PID)), id(int64(row.Leader)), row.Type,
		nameOr(row.Database, row.DatabaseID), nameOr(row.User, row.UserID), row.App, row.State, row.WaitType, row.WaitEvent,
		blockedBy, strings.Join(locks, ", "), row.Phrase, row.Function, age(row.XactStart), age(row.QueryStart),
		id(row.QueryID), row.Query, id(row.Stack), strconv.FormatBool(row.Ended),
	}
}

// historyNotice says what the rows lack.
func historyNotice(s *store.Summary, next time.Time) string {
	var parts []string
	if !next.IsZero() {
		parts = append(parts, fmt.Sprintf("there are more rows: go on with %s", next.UTC().Format("2006-01-02 15:04:05.000000+00")))
	}
	if gaps := len(s.Gaps) + s.GapsMore; gaps > 0 && next.IsZero() {
		parts = append(parts, fmt.Sprintf("the span has %d gaps in which nothing was recorded", gaps))
	}
	if s.Lost > 0 {
		parts = append(parts, fmt.Sprintf("%d sweeps could not be written", s.Lost))
	}
	if len(s.Damage) > 0 {
		parts = append(parts, fmt.Sprintf("%d files cannot be read whole", len(s.Damage)))
	}
	return strings.Join(parts, "; ")
}

// historyFailure words an error for the SQL caller.
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

// nameOr is store.WaitName without a sign for an unknown name.
func nameOr(name string, oid uint32) string {
	if name == "" && oid == 0 {
		return ""
	}
	return store.ObjectName(name, oid)
}
