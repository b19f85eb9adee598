package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
)

// lookEvery is the interval of the search for new processes. A process with a shorter life may be missed.
const lookEvery = 2 * time.Millisecond

// watch contains the captured processes.
type watch struct {
	options  options
	capturer *capture.Capturer
	figures  figures

	mu    sync.Mutex
	known map[identity]bool // processes that have, or had, a goroutine
	work  sync.WaitGroup
}

// identity identifies a process permanently.
type identity struct {
	pid   int
	start uint64
}

func newWatch(o options, c *capture.Capturer) *watch {
	return &watch{options: o, capturer: c, known: map[identity]bool{}, figures: newFigures()}
}

// run looks for processes until the context ends, and waits for the last captures.
func (w *watch) run(ctx context.Context) {
	w.figures.began = time.Now()
	for _, dir := range w.options.Dirs {
		w.work.Go(func() { w.server(ctx, dir) })
	}
	w.work.Wait()
	w.figures.took = time.Since(w.figures.began)
}

// server follows the server of a data directory. The server may start later, end, and be restarted.
func (w *watch) server(ctx context.Context, dir string) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	postmaster, user := identity{}, -1
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !lives(postmaster) {
			if postmaster, user = findPostmaster(dir); postmaster.pid == 0 {
				continue
			}
			w.add(ctx, postmaster, 0, user)
		}
		children, err := process.Children(postmaster.pid)
		if err != nil {
			continue // it has just ended
		}
		for _, pid := range children {
			if stat, err := process.ReadStat(pid); err == nil && stat.PPID == postmaster.pid && stat.State != 'Z' {
				w.add(ctx, identity{pid, stat.StartTime}, postmaster.pid, user)
			}
		}
	}
}

// add has a process captured, unless it is already.
func (w *watch) add(ctx context.Context, id identity, parent, user int) {
	w.mu.Lock()
	old := w.known[id]
	w.known[id] = true
	w.mu.Unlock()
	if old {
		return
	}
	p := &watched{watch: w, id: id, parent: parent, user: user}
	w.work.Go(func() { p.run(ctx) })
}

func lives(id identity) bool {
	if id.pid == 0 {
		return false
	}
	stat, err := process.ReadStat(id.pid)
	return err == nil && stat.StartTime == id.start && stat.State != 'Z'
}

// findPostmaster reads the data directory's lock file. A stale file names a process that does not work there.
func findPostmaster(dir string) (identity, int) {
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return identity{}, -1
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil || pid <= 0 {
		return identity{}, -1
	}
	here, err1 := os.Stat(dir)
	there, err2 := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	stat, err3 := process.ReadStat(pid)
	if err1 != nil || err2 != nil || err3 != nil || !os.SameFile(here, there) || stat.State == 'Z' {
		return identity{}, -1
	}
	status, err := process.ReadStatus(pid)
	if err != nil {
		return identity{}, -1
	}
	return identity{pid, stat.StartTime}, status.UID[0]
}
