package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// target is a process that all tools capture.
type target struct {
	Name string `json:"name"`
	PID  int    `json:"-"`
	Busy bool   `json:"busy"`
	SQL  bool   `json:"-"` // a process of the server
	gaps *gaps  // its own record of its pauses; nil if it keeps none
}

// wake lets a busy target run, and rest stops it again. Only one target at a time may use a processor. Otherwise the
// targets would measure each other.
func (t target) wake() { t.signal(syscall.SIGCONT) }
func (t target) rest() { t.signal(syscall.SIGSTOP) }

func (t target) signal(s syscall.Signal) {
	if t.Busy {
		_ = syscall.Kill(t.PID, s) // if it is gone, the tools will report this
	}
}

// targets are all targets, and the connections that keep them alive.
type targets struct {
	List []target
	gaps *gaps

	spin   *exec.Cmd
	cancel context.CancelFunc
	done   chan struct{} // closed when the busy session has ended
}

// schema creates the busy backend's work: sorts inside two PL/pgSQL functions.
const schema = `
CREATE FUNCTION bench_sort() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE total bigint;
BEGIN
	SELECT sum(x * n) INTO total
	FROM (SELECT x, row_number() OVER () AS n
		FROM generate_series(1, 50000) AS x ORDER BY (x * 7919) % 50021, x) AS sorted;
	RETURN total;
END $$;
CREATE FUNCTION bench_nest(depth int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	IF depth > 0 THEN
		RETURN bench_nest(depth - 1);
	END IF;
	RETURN bench_sort();
END $$`

const busy = `DO $$ BEGIN LOOP PERFORM bench_nest(1); END LOOP; END $$`

func openTargets(ctx context.Context, programs programs, s *server, out string) (t *targets, err error) {
	ctx, cancel := context.WithCancel(ctx)
	t = &targets{cancel: cancel, done: make(chan struct{})}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	conn, err := s.connect(ctx)
	if err != nil {
		close(t.done)
		return t, err
	}
	var checkpointer int
	err = conn.QueryRow(ctx, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").Scan(&checkpointer)
	if err == nil {
		_, err = conn.PgConn().Exec(ctx, schema).ReadAll()
	}
	backend := int(conn.PgConn().PID())
	go t.keepBusy(ctx, conn, err == nil)
	if err != nil {
		return t, fmt.Errorf("preparing the busy backend: %w", err)
	}
	spin, err := t.startSpin(ctx, programs.path["spin"], filepath.Join(out, "gaps"))
	if err != nil {
		return t, err
	}
	t.List = []target{
		{Name: "idle checkpointer", PID: checkpointer, SQL: true},
		{Name: "busy backend", PID: backend, SQL: true, Busy: true},
		{Name: "C loop", PID: spin, Busy: true, gaps: t.gaps},
	}
	for _, target := range t.List {
		target.rest()
	}
	return t, nil
}

// keepBusy runs the endless statement until ctx ends.
func (t *targets) keepBusy(ctx context.Context, conn *pgx.Conn, work bool) {
	defer close(t.done)
	if work {
		if _, err := conn.Exec(ctx, busy); err != nil && ctx.Err() == nil {
			progressf("the busy backend ended: %v", err)
		}
	}
	_ = conn.Close(context.WithoutCancel(ctx))
}

func (t *targets) startSpin(ctx context.Context, program, file string) (int, error) {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("old gaps: %w", err)
	}
	spin := command(ctx, program, file)
	if err := spin.Start(); err != nil {
		return 0, fmt.Errorf("starting the loop: %w", err)
	}
	t.spin = spin
	var err error
	t.gaps, err = openGaps(ctx, file)
	return spin.Process.Pid, err
}

func (t *targets) close() {
	for _, target := range t.List {
		target.wake()
	}
	t.cancel()
	<-t.done
	if t.spin != nil {
		_ = t.spin.Wait() // killed by cancel
	}
	if t.gaps != nil {
		t.gaps.close()
	}
}
