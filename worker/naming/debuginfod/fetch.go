package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/host/rootfs"
)

const (
	// maxWaiting bounds the waiting requests.
	maxWaiting = 1024
	// retryPause is the time before a failed request may be repeated.
	retryPause = time.Minute
	// refusedPause replaces retryPause after a rejected file, because the server is likely to send the same file again.
	refusedPause = 10 * time.Minute
)

// Cached returns the path of a file in the cache, or "" if it is not there. It sends no request. Other clients may
// have written the file, so the caller must check its build-id.
func (c *Client) Cached(kind Kind, id string) string {
	if !ValidID(id) {
		return ""
	}
	path, _ := c.cache.find(kind, id, c.now())
	return path
}

// DebugFile returns the path of the debug file of a build if it is in the cache, or "" if it is not.
func (c *Client) DebugFile(id string) string { return c.Cached(DebugInfo, id) }

// RequestDebugFile downloads the debug file of a build in the background, and returns at once. At the end another
// goroutine calls the callback done once. Its argument arrived reports whether the file is in the cache. If the file is
// not there, further requests also fail until the time in the argument again.
func (c *Client) RequestDebugFile(id string, done func(arrived bool, again time.Time)) {
	if !c.enter() {
		go done(false, c.now().Add(retryPause))
		return
	}
	go func() {
		defer c.running.Done()
		err := host.Catch("a download", func() error {
			_, err := c.Fetch(c.ctx, DebugInfo, id)
			return err
		})
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
		done(err == nil, c.again(DebugInfo, id))
	}()
}

// Waiting returns the number of calls of RequestDebugFile whose callback was not called yet.
func (c *Client) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}

// enter counts a request. It returns false if the client is closed or already has maxWaiting requests.
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

// Fetch returns the path of a file in the cache, and downloads it first if needed. For a debug file it also downloads
// the supplementary file (dwz) if this host does not have it. If only the supplementary file fails, Fetch returns no
// error. Concurrent calls for a file share one download, and a cancelled call (ctx) does not end it for the others. The
// error is ErrBuildID, ErrNotFound, ErrClosed, the cause of ctx, or ErrServers, which is wrapped with the error of each
// server.
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

// one is Fetch without the supplementary file.
func (c *Client) one(ctx context.Context, kind Kind, id string) (string, error) {
	if !ValidID(id) {
		return "", fmt.Errorf("%w: %q", ErrBuildID, id)
	}
	ch := c.flight.DoChan(string(kind)+" "+id, func() (any, error) {
		if !c.begin() {
			return "", ErrClosed
		}
		defer c.running.Done()
		var path string
		err := host.Catch("a download", func() (err error) { // singleflight would end the program by a panic
			path, err = c.fetch(c.ctx, kind, id)
			return err
		})
		return path, err
	})
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case res := <-ch:
		path, _ := res.Val.(string)
		if res.Err == nil && path == "" {
			res.Err = errNoPath
		}
		if res.Err != nil {
			return "", fmt.Errorf("%s of build-id %s: %w", kind, id, res.Err)
		}
		return path, nil
	}
}

// errNoPath means a bug in this package: a download without an error and without a path.
var errNoPath = errors.New("no path")

// fetch searches the cache, then asks the servers.
func (c *Client) fetch(ctx context.Context, kind Kind, id string) (string, error) {
	path, missed := c.cache.find(kind, id, c.now())
	switch {
	case path != "" && intact(path, id):
		return path, nil
	case !missed.IsZero():
		return "", fmt.Errorf("%w (remembered; next request in %s)",
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

// ask asks the servers in turn.
func (c *Client) ask(ctx context.Context, kind Kind, id string) (string, error) {
	key := string(kind) + " " + id
	if err := c.remembered(key); err != nil {
		return "", fmt.Errorf("%w (remembered): %w", ErrServers, err)
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
		if ctx.Err() != nil { // a server that was not asked may have the file
			return "", context.Cause(ctx)
		}
	}
	if errs == nil {
		_ = c.cache.miss(kind, id, c.now()) // if this fails, the next call asks the servers again
		return "", ErrNotFound
	}
	c.remember(key, errs, pause)
	return "", fmt.Errorf("%w: %w", ErrServers, errs)
}

// errPaused means that a server is not used for a while.
var errPaused = errors.New("not used after repeated failures")

// askServer asks one server. It returns errPaused while the server is paused after failures.
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

// missingSupplement returns the build-id of the supplementary file that a debug file names, unless this host has it.
func missingSupplement(path string) (string, bool) {
	f, err := rootfs.Open(path)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	m, err := elfimage.Open(f, path)
	if err != nil {
		return "", false
	}
	link, ok := elfimage.SupplementLink(m)
	if !ok || !ValidID(link.ID) {
		return "", false
	}
	if r, err := elfimage.FindSupplement(m, path, elfimage.SearchOptions{Open: openFile}); err == nil {
		_ = r.Close()
		return "", false
	}
	return link.ID, true
}

// openFile opens a file that a debug file names.
func openFile(path string) (elfimage.File, error) {
	f, err := rootfs.Open(path)
	if err != nil {
		return nil, err // not f: an interface that contains a nil *os.File is not nil
	}
	return f, nil
}

// again returns the time before which another request for a file would fail too.
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
