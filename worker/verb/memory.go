package verb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for the memory contexts of one process; see pg_get_memory_contexts in sql/.
var _ = register(Verb{
	Name: "memory", Processes: One, answer: (*Service).answerMemory,
	gate: func(s *Service, ctx context.Context, c call) (func(), error) {
		return s.bounds.trees.Acquire(ctx, user(caller(c.Request)), 1)
	},
})

// answerMemory answers with a first row with a warning or "", and then a row for each memory context. The only
// privilege that is checked is EXECUTE on the function. sql/ grants it to pg_read_all_stats, like
// pg_backend_memory_contexts.
func (s *Service) answerMemory(ctx context.Context, c call) spool.Answer {
	req, began := c.Request, c.began
	m, err := s.memoryContexts(ctx, req)
	var a spool.Answer
	if err != nil {
		a = memoryFailure(req.Targets[0], err)
	} else {
		s.hideStatements(m.Tree, req.Superuser)
		a = spool.Answer{Rows: memoryRows(m.Bounded(), req.Targets[0], req.Encoding)}
	}
	s.log1(req, func(e *zerolog.Event) {
		e.Int("pid", req.Targets[0]).Dur("took_ms", time.Since(began))
		if err != nil {
			e.Str("sqlstate", a.SQLState).AnErr("error", err).Msg("request failed")
			return
		}
		e.Int("contexts", len(m.Contexts)).Bool("consistent", m.Consistent).Int("readings", m.Attempts).Msg("request")
	})
	s.cfg.Journal.Add(req.Database, journalRow(req, began, captured{}, a))
	return a
}

func (s *Service) memoryContexts(ctx context.Context, req spool.Request) (*capture.MemoryContexts, error) {
	c, err := s.cfg.Server()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	target, err := c.Contains(req.Targets[0])
	switch {
	case errors.Is(err, cluster.ErrPostmaster): // allowed, because this read stops no process
		if target, err = c.Postmaster(); err != nil {
			return nil, err
		}
	case errors.Is(err, process.ErrNotPermitted):
		return nil, err
	case errors.Is(err, cluster.ErrNotMember):
		return nil, fmt.Errorf("%w: %w", errNoProcess, err)
	case err != nil:
		return nil, err
	}
	defer target.Held.Release()
	return s.cfg.Capturer.MemoryContexts(ctx, target, memctx.Options{MaxContexts: limits.MaxContexts, MaxPages: limits.MaxMemoryPages})
}

// memoryRows returns the rows of pg_get_memory_contexts from a bounded tree, for a database with this encoding. An empty cell becomes
// NULL.
func memoryRows(m *capture.MemoryContexts, pid int, encoding string) [][]string {
	rows := [][]string{nil}
	size, leftOut := 0, m.LeftOut
	for i := range m.Contexts {
		c := &m.Contexts[i]
		parent := ""
		if c.Parent >= 0 {
			parent = m.Contexts[c.Parent].Name
		}
		path := strings.ReplaceAll(strings.Trim(fmt.Sprint(m.Path(i)), "[]"), " ", ",")
		row := []string{
			c.Name, c.Ident, c.Type, parent, strconv.Itoa(m.Level(i)), "{" + path + "}",
			cell(c.Total), cell(c.Blocks), cell(c.Free), cell(c.FreeChunks), cell(c.Used()),
		}
		if size += cellsSize(row, encoding); size > limits.MaxRows {
			leftOut = true
			break
		}
		rows = append(rows, row)
	}
	rows[0] = []string{memoryWarning(m, pid, leftOut)}
	return rows
}

func cell(n int64) string {
	if n == memctx.Unknown {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// memoryWarning returns a warning about rows that are missing or were not read at one moment, or "".
func memoryWarning(m *capture.MemoryContexts, pid int, leftOut bool) string {
	switch {
	case !m.Consistent:
		return fmt.Sprintf("memory contexts of process %d changed while they were read", pid)
	case leftOut:
		return fmt.Sprintf("process %d has too many memory contexts: some, or their free space, are left out", pid)
	case m.Deeper() > 0:
		return fmt.Sprintf("process %d has %d memory contexts below level %d: "+
			"their bytes count in their ancestors on that level", pid, m.Deeper(), m.LastLevel())
	case m.NoChecks:
		return "free space is not known in a server that was built with assertions"
	}
	return ""
}

// memoryFailure returns the answer to the SQL caller for an error.
func memoryFailure(pid int, err error) spool.Answer {
	fault := spool.Answer{Level: "ERROR", SQLState: render.NotInPrerequisiteState}
	switch {
	case errors.Is(err, memctx.ErrNoContexts):
		fault.Message = fmt.Sprintf("process with PID %d has no memory contexts", pid)
		fault.Detail = "It is starting or ending, or its memory cannot be read."
	case errors.Is(err, capture.ErrNotPostgres), errors.Is(err, memctx.ErrNotServer):
		fault.Message = fmt.Sprintf("memory contexts of process with PID %d are not known", pid)
		fault.Detail = "It runs no PostgreSQL server of version 14 to 19."
	case errors.Is(err, context.DeadlineExceeded):
		fault.Message = fmt.Sprintf("memory contexts of process with PID %d could not be read in time", pid)
		fault.Hint = "Increase pg_stat_backtrace.timeout."
	default:
		return failure(pid, err)
	}
	return fault
}
