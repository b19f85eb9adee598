package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/host"
)

// Exporter makes profiles one after the other and pushes them.
type Exporter struct {
	cfg     Config
	spool   *spool
	senders []*sender
}

// Figures are the numbers of sent, failed, dropped and waiting profiles of one receiver.
type Figures struct {
	Type string
	// Sent and Dropped are numbers of profiles, and Failed is a number of requests, since the start of the worker.
	Sent, Failed, Dropped uint64
	// Pending is the number of profiles that were not sent yet. PendingBytes is their size.
	Pending      int
	PendingBytes int64
}

// Messages of the log.
const (
	givenUp  = "profiles were given up"
	inMemory = "profiles wait in memory while the receiver is down"
	notKept  = "a profile could not be kept on disk: it waits in memory or was given up"
)

// New makes an exporter. It returns an error if an option or HeaderFile is wrong. If SpoolDir cannot be used, New logs
// the reason, and profiles wait in memory.
func New(cfg Config) (*Exporter, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	unreadable := ""
	if cfg.HeaderFile != "" {
		_, err := ReadHeaders(cfg.HeaderFile)
		if err != nil {
			unreadable = err.Error()
		}
		if err != nil && (cfg.Headers == nil || !errors.Is(err, fs.ErrPermission)) {
			return nil, err
		}
	}
	cfg.Interval, cfg.SpoolBytes = cmp.Or(cfg.Interval, DefaultInterval), cmp.Or(cfg.SpoolBytes, DefaultSpool)
	e := &Exporter{cfg: cfg}
	var err error
	if e.spool, err = openSpool(cfg.SpoolDir, cfg.SpoolBytes, cfg.timing.withDefaults().maxAge); err != nil {
		cfg.Log.Warn().Err(err).Msg(inMemory)
	}
	for _, r := range []struct {
		kind, text string
		protocol   protocol
	}{{Pyroscope, cfg.Pyroscope, pyroscope{}}, {OTLP, cfg.OTLP, otlp{}}} {
		if r.text == "" {
			continue
		}
		base, err := parseURL(r.text)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOptions, err)
		}
		s := newSender(r.kind, base, r.protocol, &e.cfg, e.spool)
		s.reported = unreadable // the caller, which was root, has logged this already
		e.senders = append(e.senders, s)
	}
	return e, nil
}

// Figures returns the figures of each receiver.
func (e *Exporter) Figures() []Figures {
	all := make([]Figures, 0, len(e.senders))
	for _, s := range e.senders {
		f := Figures{Type: s.kind, Sent: s.sent.Load(), Failed: s.failed.Load()}
		f.Pending, f.PendingBytes, f.Dropped = e.spool.figures(s.kind)
		all = append(all, f)
	}
	return all
}

// Run makes and sends profiles until ctx ends. The next worker sends the profiles that are on disk at that time.
func (e *Exporter) Run(ctx context.Context) {
	defer e.spool.close()
	var wg sync.WaitGroup
	for _, s := range e.senders {
		wg.Go(func() { s.run(ctx) })
	}
	reported := map[string]string{} // the last logged error, by message
	once := func(message string, err error) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != reported[message] {
			e.cfg.Log.Warn().Err(err).Msg(message)
		}
		reported[message] = text
	}
	for ctx.Err() == nil {
		began := time.Now()
		err := host.Catch("the export of profiles", func() error {
			p, err := e.cfg.Collect(ctx, e.cfg.Interval)
			if err == nil {
				once(notKept, e.keep(p))
			}
			return err
		})
		if ctx.Err() == nil {
			once("cannot make profiles to push, trying again", err)
		}
		if passed := time.Since(began); passed < e.cfg.Interval {
			e.rest(ctx, e.cfg.Interval-passed)
		}
	}
	wg.Wait()
}

// rest waits for d and a random time of up to a tenth of the interval, so that the workers of many hosts do not send at
// the same time.
func (e *Exporter) rest(ctx context.Context, d time.Duration) {
	d += time.Duration(rand.Int64N(int64(e.cfg.Interval)/10 + 1)) //nolint:gosec // chance, not a secret
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// keep puts a profile into the spool, once for each receiver. It returns the errors of spool.add.
func (e *Exporter) keep(p *profile.Profile) error {
	var failure error
	for _, s := range e.senders {
		labels, encode := []string(nil), pushRequest
		if s.kind == OTLP {
			labels, encode = otlpLabels, otlpRequest
		}
		parts, err := split(p, labels)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			return nil
		}
		data, err := encode(&e.cfg, parts)
		if err == nil {
			err = e.spool.add(s.kind, data, len(parts))
		}
		failure = cmp.Or(failure, err)
	}
	return failure
}
