package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/elfimage"
)

const (
	// maxWaiting bounds the requests that wait for their turn.
	maxWaiting = 1024
	// retryPause is after what time a request that failed may be repeated.
	retryPause = time.Minute
	// refusedPause is the same for a file that was sent and not taken: it is likely to be sent again.
	refusedPause = 10 * time.Minute
)

// Cached returns the path of a file that is in the cache, "" if it is not. It asks nobody. What is there may have been
// put there by others: whoever reads it has to check its build-id.
func (c *Client) Cached(kind Kind, id string) string {
	if !ValidID(id) {
		return ""
	}
	path, _ := c.cache.find(kind, id, c.now())
	return path
}

// DebugFile returns the path of the debug file of a build if it is in the cache, "" if it is not.
func (c *Client) DebugFile(id string) string { return c.Cached(DebugInfo, id) }

// RequestDebugFile has the debug file of a build fetched, beside, and returns at once. When that has ended, done is
// called once, by another goroutine: with true if the file is in the cache, else with the time before which there is
// no use in asking again.
func (c *Client) RequestDebugFile(id string, done func(arrived bool, again time.Time)) {
	if !c.enter() {
		go done(false, c.now().Add(retryPause))
		return
	}
	go func() {
		defer c.running.Done()
		_, err := c.Fetch(c.ctx, DebugInfo, id)
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
		done(err == nil, c.again(DebugInfo, id))
	}()
}

// Waiting returns how many requests have not ended yet.
func (c *Client) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// enter counts a request in, unless the client is closed or has too many.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.waiting >= maxWaiting {
		return false
	}
	c.waiting++
	c.running.Add(1)
	return true
}

// Fetch returns the path of a file in the cache, and gets it there first if need be; of a debug file, also the
// supplementary file (dwz) that it names, unless this host has it: without that it is still of use. Who asks for the
// same file at the same time shares one download; one who gives up (ctx) leaves it to the others. The error is
// ErrBuildID, ErrNotFound, ErrClosed, ctx's, or ErrServers, wrapped together with what was wrong with each server.
func (c *Client) Fetch(ctx context.Context, kind Kind, id string) (string, error) {
	path, err := c.one(ctx, kind, id)
	if err != nil || kind != DebugInfo {
		return path, err
	}
	if link, ok := missingSupplement(path); ok {
		_, _ = c.one(ctx, DebugInfo, link)
	}
	return path, nil
}

// one gets one file.
func (c *Client) one(ctx context.Context, kind Kind, id string) (string, error) {
	if !ValidID(id) {
		return "", fmt.Errorf("%w: %q", ErrBuildID, id)
	}
	ch := c.flight.DoChan(string(kind)+" "+id, func() (any, error) {
		if !c.begin() {
			return "", ErrClosed
		}
		defer c.running.Done()
		return c.fetch(c.ctx, kind, id)
	})
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case res := <-ch:
		path, _ := res.Val.(string)
		if res.Err != nil {
			return "", fmt.Errorf("%s of build-id %s: %w", kind, id, res.Err)
		}
		return path, nil
	}
}

// fetch looks into the cache, then asks the servers.
func (c *Client) fetch(ctx context.Context, kind Kind, id string) (string, error) {
	path, missed := c.cache.find(kind, id, c.now())
	switch {
	case path != "" && intact(path, id):
		return path, nil
	case !missed.IsZero():
		return "", fmt.Errorf("%w (asked before; will be asked again in %s)",
			ErrNotFound, missed.Sub(c.now()).Round(time.Second))
	}
	if err := c.slots.Acquire(ctx, 1); err != nil {
		return "", ErrClosed
	}
	defer c.slots.Release(1)
	path, err := c.ask(ctx, kind, id)
	if err != nil && ctx.Err() != nil {
		err = ErrClosed
	}
	return path, err
}

// ask asks one server after the other.
func (c *Client) ask(ctx context.Context, kind Kind, id string) (string, error) {
	key := string(kind) + " " + id
	if err := c.remembered(key); err != nil {
		return "", fmt.Errorf("%w (asked before): %w", ErrServers, err)
	}
	var errs error
	pause := retryPause
	for _, s := range c.servers {
		path, err := c.askServer(ctx, s, kind, id)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrTooLarge) {
			pause = refusedPause
		}
		if !errors.Is(err, ErrNotFound) {
			errs = errors.Join(errs, fmt.Errorf("%s: %w", s.name(), err))
		}
		if ctx.Err() != nil {
			return "", errs
		}
	}
	if errs == nil {
		_ = c.cache.miss(kind, id, c.now()) // then it is asked for once more
		return "", ErrNotFound
	}
	c.remember(key, errs, pause)
	return "", fmt.Errorf("%w: %w", ErrServers, errs)
}

// errPaused says that a server is being left alone.
var errPaused = errors.New("not asked, since it failed before")

// askServer asks one server, through its breaker.
func (c *Client) askServer(ctx context.Context, s *server, kind Kind, id string) (string, error) {
	if !s.allow(c.now()) {
		return "", errPaused
	}
	began := time.Now()
	path, err := c.download(ctx, s, kind, id)
	e := Event{File: kind, ID: id, Server: s.name(), Took: time.Since(began), Err: err}
	var local localError
	switch {
	case err == nil:
		s.ok()
	case errors.Is(err, ErrNotFound):
		s.ok()
		e.Kind, e.Err = Missing, nil
		c.tell(e)
	case c.ctx.Err() != nil:
		s.undecided()
	case errors.Is(err, ErrTooLarge), errors.As(err, &local):
		s.undecided()
		e.Kind = Failed
		c.tell(e)
	default:
		e.Kind = Failed
		c.tell(e)
		if pause := s.failed(c.now(), errors.Is(err, ErrStalled)); pause > 0 {
			e.Kind, e.Took = Paused, pause
			c.tell(e)
		}
	}
	return path, err
}

// missingSupplement returns the build-id of the supplementary file that a debug file names, unless it is on this host
// already.
func missingSupplement(path string) (string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	m, err := elfimage.Open(f, path)
	if err != nil {
		return "", false
	}
	link, ok := debugfile.SupplementLink(m)
	if !ok || !ValidID(link.ID) {
		return "", false
	}
	if r, err := debugfile.FindSupplement(m, path, debugfile.Options{}); err == nil {
		_ = r.Close()
		return "", false
	}
	return link.ID, true
}

// again is the time before which asking for a file once more is of no use.
func (c *Client) again(kind Kind, id string) time.Time {
	now := c.now()
	at := now.Add(retryPause)
	if _, missed := c.cache.find(kind, id, now); missed.After(at) {
		at = missed
	}
	if until := c.until(string(kind) + " " + id); until.After(at) {
		at = until
	}
	return at
}
