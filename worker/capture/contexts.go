package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/naming"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/memctx"
)

// ErrNotPostgres means that a process runs no PostgreSQL server of a known version.
var ErrNotPostgres = errors.New("not a process of a known PostgreSQL server")

// lastReads is how long MemoryContexts waits for the end of a read after ctx has ended. Then it abandons the read.
const lastReads = 500 * time.Millisecond

// MemoryContexts has the memory contexts of a PostgreSQL process.
type MemoryContexts struct {
	*memctx.Tree

	// Major is the server's major version.
	Major int
}

// MemoryContexts reads the memory contexts of a PostgreSQL process, without stopping it, until ctx ends. It returns the
// errors of process.ReadMemory and of package memctx, ErrNotPostgres and process.ErrRecycled. If the kernel still
// blocks the read after the end of ctx, the error is process.ErrUnreachable. Until that read ends, further calls for
// the process return this error at once.
func (c *Capturer) MemoryContexts(
	ctx context.Context, target process.Target, o memctx.Options,
) (*MemoryContexts, error) {
	before, err := process.ReadStat(target.PID)
	if err != nil {
		return nil, process.ReadError(target.PID, target.PID, err)
	}
	if target.StartTime != 0 && target.StartTime != before.StartTime {
		return nil, fmt.Errorf("process %d: %w", target.PID, process.ErrRecycled)
	}
	if err := verifyRights(&target); err != nil {
		return nil, err
	}
	key := naming.ProcessKey{PID: target.PID, StartTime: before.StartTime}
	began := time.Now()
	read, err := c.memory.begin(ctx, key, began)
	if err != nil {
		return nil, err
	}
	type result struct {
		contexts *MemoryContexts
		err      error
	}
	done := make(chan result, 1)
	go func() {
		defer c.memory.end(key, read)
		var contexts *MemoryContexts
		err := host.Catch("a reading of memory contexts", func() (err error) {
			contexts, err = c.memoryContexts(ctx, key, o)
			return err
		})
		if denied := verifyRights(&target); denied != nil {
			contexts, err = nil, denied
		}
		done <- result{contexts, err}
	}()
	select {
	case r := <-done:
		return r.contexts, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.contexts, r.err
	case <-time.After(lastReads):
		close(read.abandoned)
		return nil, unreachable(target.PID, began)
	}
}

func (c *Capturer) memoryContexts(
	ctx context.Context, key naming.ProcessKey, o memctx.Options,
) (*MemoryContexts, error) {
	process.ProbeReadable(key.PID)
	server, bias, err := c.memoryServer(key)
	if err != nil {
		return nil, err
	}
	tree, err := server.Read(ctx, func(addr uint64, p []byte) int {
		n, _ := process.ReadMemory(key.PID, addr, p)
		return n
	}, bias, o)
	after, gone := process.ReadStat(key.PID)
	switch {
	case gone != nil:
		return nil, process.ReadError(key.PID, key.PID, gone)
	case process.HasEnded(&after):
		return nil, process.Exited(key.PID)
	case after.StartTime != key.StartTime:
		return nil, fmt.Errorf("process %d: %w", key.PID, process.ErrRecycled)
	case err != nil:
		return nil, fmt.Errorf("process %d: %w", key.PID, err)
	}
	return &MemoryContexts{Tree: tree, Major: server.Major}, nil
}

// memoryServer returns the server of a process for package memctx, and the load bias of the process's program.
func (c *Capturer) memoryServer(key naming.ProcessKey) (*memctx.Server, uint64, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", key.PID))
	if err != nil {
		// ReadMemory fails for the same reason, and returns it as an error of package process.
		_, err = process.ReadMemory(key.PID, 0, make([]byte, 1))
		return nil, 0, err
	}
	maps, err := process.Maps(key.PID)
	if err != nil || len(maps) == 0 {
		_, err = process.ReadMemory(key.PID, 0, make([]byte, 1))
		return nil, 0, err
	}
	space := c.processes.Open(key.PID, key.StartTime, maps)
	space.Files = &symbolize.Deadline{After: c.linesWait}
	defer space.Files.Stop()
	known := c.lookAtProgram(key.PID, space, exe)
	switch {
	case space.Unread != "":
		return nil, 0, fmt.Errorf("process %d: %s has not been read in time", key.PID, space.Unread)
	case known.process == nil:
		// A program that cannot be read looks like a program other than PostgreSQL.
		if _, err := process.ReadMemory(key.PID, maps[0].Start, make([]byte, 1)); errors.Is(err, process.ErrNotPermitted) {
			return nil, 0, err
		}
		return nil, 0, fmt.Errorf("process %d: %w", key.PID, ErrNotPostgres)
	}
	variables, err := known.module.Image.Defined(memctx.Variables()...)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", known.module.Name, err)
	}
	general := c.programs.of(known.module, space).server
	server, err := memctx.NewServer(general.Major, func(name string) uint64 { return variables[name] })
	return server, known.bias, err
}

// Bounded returns the contexts with at most memctx.MaxLevels levels: see memctx.Tree.
func (m *MemoryContexts) Bounded() *MemoryContexts {
	return &MemoryContexts{Tree: m.Tree.Bounded(), Major: m.Major}
}

// Level returns the level of context i as in the view pg_backend_memory_contexts of the server's version. The first
// context has level 0 before version 18, and level 1 since.
func (m *MemoryContexts) Level(i int) int { return m.firstLevel() + m.Contexts[i].Depth }

// LastLevel returns the deepest level that Bounded keeps, in the numbers of Level.
func (m *MemoryContexts) LastLevel() int { return m.firstLevel() + memctx.MaxLevels - 1 }

func (m *MemoryContexts) firstLevel() int {
	const firstIsOne = 18
	if m.Major >= firstIsOne {
		return 1
	}
	return 0
}
