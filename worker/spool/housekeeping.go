package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepHouse does the checks for which there are no events. It returns an error if the spool must be made again.
func (s *Spool) keepHouse(now time.Time) error {
	if !still(s.lock, s.data.Join(lockName)) {
		return fmt.Errorf("%w: the lock file of %s is gone", ErrLost, s.cfg.DataDir)
	}
	full, err := s.look()
	if err != nil {
		return err
	}
	if full && s.elsewhere() {
		return fmt.Errorf("%w: %s: %w", ErrLost, s.Dir(), ErrFull)
	}
	if s.cfg.Witness != nil {
		s.complain(s.dir.touch())
	}
	s.complain(s.keys.renew(now))
	s.complain(s.publish()) // the file may have been removed, or replaced by a copy
	s.refill()
	if n := s.calls.expire(now); n > 0 {
		s.cfg.report(fmt.Errorf("%d unfetched answers were removed to make room for others", n))
	}
	return nil
}

// look checks whether there is room, and updates the file ready.
func (s *Spool) look() (full bool, err error) {
	full, err = s.dir.check()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	changed := full != s.full
	s.full = full
	if changed {
		err = s.dir.markReady(!full)
	}
	s.mu.Unlock()
	if changed && full {
		s.cfg.report(fmt.Errorf("spool directory %s: %w", s.Dir(), ErrFull))
	}
	return full, err
}

// notice checks for room at once after an error. Housekeeping finds and reports a lasting error.
func (s *Spool) notice() { _, _ = s.look() }

// elsewhere reports whether a new spool directory would be made on another file system.
func (s *Spool) elsewhere() bool {
	for i, name := range bases(s.cfg) {
		base, err := openBase(s.cfg, name, s.cfg.Base == "" && i == 0)
		if err == nil {
			_ = base.Close()
			return name != filepath.Dir(s.dir.name)
		}
	}
	return false
}

// complain reports an error, and does not repeat it until it changes.
func (s *Spool) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.reported {
		s.reported = text
		s.cfg.report(err)
	}
}

// consumed removes an answer that has been read.
func (s *Spool) consumed(name string) {
	if !isUUID(strings.TrimSuffix(name, repSuffix)) {
		return
	}
	s.calls.fetched(name)
	s.cfg.report(s.dir.unlink(name))
}

// sweep searches the whole directory for requests without an event, and for answers that are not awaited.
func (l *loop) sweep(ctx context.Context) {
	d := l.s.dir
	if _, err := d.f.Seek(0, 0); err != nil { // rewinds; opening it again would cause an event
		l.s.complain(err)
		return
	}
	for {
		names, err := d.f.Readdirnames(1024)
		for _, name := range names {
			switch filepath.Ext(name) {
			case reqSuffix:
				l.request(ctx, name, false)
			case repSuffix:
				l.s.stray(name)
			}
		}
		if err != nil { // io.EOF at the end
			return
		}
	}
}

// stray removes an old answer that this spool did not deliver.
func (s *Spool) stray(name string) {
	var st unix.Stat_t
	if s.calls.waits(name) || unix.Fstatat(s.dir.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if time.Since(time.Unix(st.Ctim.Unix())) > unread {
		if err := s.dir.unlink(name); err != nil && !errors.Is(err, os.ErrPermission) {
			s.complain(err)
		}
	}
}
