package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/limits"
)

// Spool is an open spool directory. Serve handles its requests, and Close removes it.
type Spool struct {
	cfg   Config
	keys  keyring
	data  *rootfs.Dir // the data directory
	lock  *os.File
	dir   *dir
	watch *watch
	spare chan string // names of the prepared files, for errors that are delivered when there is no room
	lost  bool        // Serve has found the directory unusable
	made  int         // number of spare files that were made, for their names

	slots   *limits.Gate // handlers that may run
	pending *limits.Gate // requests that run or wait
	memory  *limits.Gate // bytes of the requests that run or wait
	calls   *calls
	running sync.WaitGroup

	mu       sync.Mutex
	full     bool   // the file system was full at the last call of checkRoom
	reported string // the last error that housekeeping reported, to avoid repeating it

	recorder *Recorder // what publishRecorder has written; nil: nothing
}

// Open locks the data directory and makes a private spool directory. It also removes the spool directories of killed
// workers. Finally, it writes the pid file, by which the server finds the spool. The error wraps ErrLocked if another
// worker has the lock.
func Open(cfg Config) (*Spool, error) {
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil || cfg.DataDir == "" {
		return nil, fmt.Errorf("data directory %q: %w", cfg.DataDir, errors.Join(err, os.ErrInvalid))
	}
	cfg.DataDir = dataDir
	s := &Spool{
		cfg:     cfg,
		spare:   make(chan string, spares),
		slots:   limits.NewGate(limits.Share(int64(cfg.concurrency()))),
		pending: limits.NewGate(limits.Share(int64(cfg.pending()))),
		memory:  limits.NewGate(limits.Share(limits.PendingBytes)),
	}
	if s.data, err = rootfs.OpenDir(dataDir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if s.lock, err = lock(s.data); err != nil {
		return nil, errors.Join(err, s.data.Close())
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Spool) open() (err error) {
	last, _ := Find(s.data.Path()) // without a pid file, last.Dir is empty, and no directory counts as the last worker's
	for _, name := range candidateBases(s.cfg) {
		s.cfg.report(removeStale(name, s.cfg.prefix(name), last.Dir))
	}
	if s.dir, err = makeDir(s.cfg); err != nil {
		return err
	}
	if s.watch, err = newWatch(s.dir); err != nil {
		return err
	}
	s.calls = newCalls(limits.NewGate(answerRoom(s.dir.size())), func(name string) { s.cfg.report(s.dir.unlink(name)) })
	s.refill()
	if err := s.dir.markReady(true); err != nil {
		return err
	}
	s.cfg.report(s.publishRecorder())
	return s.announce(time.Now())
}

// Dir returns the path of the spool directory as this process reaches it.
func (s *Spool) Dir() string { return s.dir.full }

// Close removes the spool directory, removes the pid file if it is this spool's, and releases the lock. Serve must have
// returned or not have been called. If the directory is lost (ErrLost), the pid file stays until the next spool replaces it.
// Until then, calls get an error that asks the user to retry, instead of the error that no worker runs.
func (s *Spool) Close() error {
	var errs []error
	if s.dir != nil && !s.lost {
		errs = append(errs, s.withdraw())
	}
	if s.watch != nil {
		errs = append(errs, s.watch.close())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.remove())
	}
	return errors.Join(append(errs, unlock(s.lock), s.data.Close())...)
}

// Serve calls handle for each request in a new goroutine, and delivers the result. A handler's context ends at the
// request's deadline, or when its backend makes another request. When ctx ends, new calls get the error that the
// worker takes no requests. Serve then answers the requests that are already there, waits until their callers have
// had time to fetch the answers, and returns nil. It returns an error that wraps ErrLost if the directory is gone or
// unusable, and abandons the calls that do not end soon. Others could make no calls meanwhile.
func (s *Spool) Serve(ctx context.Context, handle func(context.Context, Request) Answer) (err error) {
	stop := context.AfterFunc(ctx, s.watch.wake)
	defer stop()
	l := loop{s: s, handle: handle, due: time.Now().Add(host.AlignedDelay(housekeeping))}
	defer func() {
		if err != nil || l.lost {
			l.abandonLate()
		}
		s.running.Wait()
	}()
	l.sweep(ctx) // requests that were written before the watch began
	for ctx.Err() == nil {
		if err := s.watch.next(ctx, l.due, func(e event) { l.event(ctx, e) }); err != nil {
			return err
		}
		if l.lost {
			s.lost = true
			return fmt.Errorf("%w: %s was removed or moved", ErrLost, s.Dir())
		}
		if l.overflow {
			l.overflow = false
			l.sweep(ctx)
		}
		if now := time.Now(); !now.Before(l.due) {
			if err := s.checkPeriodically(now); err != nil {
				s.lost = errors.Is(err, ErrLost)
				return err
			}
			l.sweep(ctx)
			l.due = time.Now().Add(host.AlignedDelay(housekeeping))
		}
	}
	s.cfg.report(s.dir.markReady(false))
	l.sweep(ctx)
	return l.finish(ctx)
}
