package verb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/authz"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verb for the processes for which a ProcSignalBarrier waits; see pg_get_blocking_backtraces in sql/. A read can
// outlive its request, so readBarrier itself passes the gate.
var _ = register(Verb{Name: "barrier", answer: (*Service).answerBarrier})

// answerBarrier answers with a row for each process that has not absorbed the latest barrier. It checks no privilege, because
// the caller already sees in pg_stat_activity that a process waits for a barrier.
func (s *Service) answerBarrier(ctx context.Context, r call) spool.Answer {
	req, began := r.Request, r.began
	c, err := s.cfg.Server()
	if err != nil {
		return s.fail(req, began, fmt.Errorf("%w: %w", errNoServer, err))
	}
	pids, err := s.readBarrier(ctx, caller(req), c)
	if errors.Is(err, limits.ErrBusy) {
		return spool.Busy()
	}
	s.log1(req, func(e *zerolog.Event) {
		e.Dur("took_ms", time.Since(began))
		if err != nil {
			e.AnErr("error", err).Msg("request failed")
			return
		}
		e.Int("processes", len(pids)).Msg("request")
	})
	var failed *host.Panic
	if errors.As(err, &failed) || errors.Is(err, process.ErrNotPermitted) {
		return failure(c.ServerPID, err)
	}
	if err != nil {
		return spool.Answer{
			Level: "WARNING", SQLState: "01000",
			Message: "the processes that have not absorbed the barrier are not known",
		}
	}
	rows := make([][]string, len(pids))
	for i, pid := range pids {
		rows[i] = []string{strconv.Itoa(pid)}
	}
	return spool.Answer{Rows: rows}
}

// readBarrier reads the processes in a goroutine, and returns limits.ErrBusy if ctx ends first. While the postmaster's
// address space is locked, a read of its memory does not return. The gate lets the next read begin only when the
// previous read has ended. So at most one goroutine hangs, however many requests come meanwhile.
func (s *Service) readBarrier(ctx context.Context, who authz.Caller, c cluster.Cluster) ([]int, error) {
	done, err := s.bounds.barriers.Acquire(ctx, user(who), 1)
	if err != nil {
		return nil, limits.ErrBusy
	}
	type result struct {
		pids []int
		err  error
	}
	read := make(chan result, 1)
	go func() {
		defer done()
		var r result
		r.err = host.Catch("a request for barriers", func() (err error) {
			r.pids, err = pendingBarrier(c)
			return err
		})
		read <- r
	}()
	select {
	case r := <-read:
		return r.pids, r.err
	case <-ctx.Done():
		return nil, limits.ErrBusy
	}
}

// pendingBarrier returns the ids of the processes that have not absorbed the latest barrier. It reads their slots in
// shared memory through the postmaster, which maps the same shared memory as its children.
func pendingBarrier(c cluster.Cluster) ([]int, error) {
	server, err := waitevent.Locate(c)
	if err != nil {
		return nil, err
	}
	memory := process.NewMemory(c.PostmasterPID)
	read := func(addr uint64, p []byte) error {
		n, err := memory.Read(addr, p)
		if err == nil && n < len(p) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	var pointer [8]byte
	if err := read(server.Target.ProcGlobal, pointer[:]); err != nil {
		return nil, fmt.Errorf("read ProcGlobal: %w", err)
	}
	maps, err := process.Maps(c.PostmasterPID)
	if err != nil {
		return nil, err
	}
	shared := binary.NativeEndian.Uint64(pointer[:])
	for i := range maps {
		if m := &maps[i]; shared >= m.Start && shared < m.End {
			return state.PendingBarriers(c.Version, read, state.SharedArea{Start: m.Start, End: m.End})
		}
	}
	return nil, errors.New("ProcGlobal points at no mapping")
}
