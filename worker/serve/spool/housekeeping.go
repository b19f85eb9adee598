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

// checkPeriodically checks for changes that cause no inotify events, and repairs them if possible. It returns an error that wraps
// ErrLost if the spool must be made again.
func (s *Spool) checkPeriodically(now time.Time) error {
	if !isSameFile(s.lock, s.data.Join(lockName)) {
		return fmt.Errorf("%w: the lock file of %s is gone", ErrLost, s.cfg.DataDir)
	}
	full, err := s.checkRoom()
	if err != nil {
		return err
	}
	if full && s.wouldMove() {
		return fmt.Errorf("%w: %s: %w", ErrLost, s.Dir(), ErrFull)
	}
	var errs []error
	if s.cfg.Witness != nil {
		errs = append(errs, s.dir.touch())
	}
	if s.cfg.Running == nil || s.cfg.Running() {
		errs = append(errs, s.announce(now)) // the pid file may have been removed, or replaced by a copy
	}
	if !full {
		errs = append(errs, s.publishRecorder())
	}
	s.reportOnce(errors.Join(errs...))
	s.refill()
	if n := s.calls.expire(now); n > 0 {
		s.cfg.report(fmt.Errorf("%d unfetched answers were removed to make room for others", n))
	}
	return nil
}

// announce renews the key, and writes the pid file.
func (s *Spool) announce(now time.Time) error {
	if err := s.keys.renew(now); err != nil {
		return err
	}
	if err := s.publish(); err != nil {
		return err
	}
	s.keys.wasPublished(now)
	return nil
}

// checkRoom checks whether the file system has room. If the result differs from the last check, it makes or removes the file
// ready.
func (s *Spool) checkRoom() (full bool, err error) {
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

// recheckRoom checks for room at once after an error of a write. It ignores the errors of the check: if such an error lasts,
// checkPeriodically returns it.
func (s *Spool) recheckRoom() { _, _ = s.checkRoom() }

// wouldMove reports whether a new spool directory would be made on another file system.
func (s *Spool) wouldMove() bool {
	for i, name := range candidateBases(s.cfg) {
		base, err := openBase(s.cfg, name, s.cfg.Base == "" && i == 0)
		if err == nil {
			_ = base.Close()
			return name != filepath.Dir(s.dir.name)
		}
	}
	return false
}

// reportOnce logs an error, unless it is the same as the error of the last call.
func (s *Spool) reportOnce(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.reported {
		s.reported = text
		s.cfg.report(err)
	}
}

// removeFetched removes the file of an answer that has been read.
func (s *Spool) removeFetched(name string) {
	if !isUUID(strings.TrimSuffix(name, repSuffix)) {
		return
	}
	s.calls.fetched(name)
	s.cfg.report(s.dir.unlink(name))
}

// sweep searches the whole directory for requests whose inotify events were lost, and for answers that no session will fetch.
func (l *loop) sweep(ctx context.Context) {
	d := l.s.dir
	if _, err := d.f.Seek(0, 0); err != nil { // rewind, because opening the directory again would cause an event
		l.s.reportOnce(err)
		return
	}
	for {
		names, err := d.f.Readdirnames(1024)
		for _, name := range names {
			switch filepath.Ext(name) {
			case reqSuffix:
				l.request(ctx, name, false)
			case repSuffix:
				l.s.removeStray(name)
			}
		}
		if err != nil { // io.EOF at the end
			return
		}
	}
}

// removeStray removes an old answer that this spool did not deliver.
func (s *Spool) removeStray(name string) {
	var st unix.Stat_t
	if s.calls.waits(name) || unix.Fstatat(s.dir.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if time.Since(time.Unix(st.Ctim.Unix())) > answerLifetime {
		if err := s.dir.unlink(name); err != nil && !errors.Is(err, os.ErrPermission) {
			s.reportOnce(err)
		}
	}
}
