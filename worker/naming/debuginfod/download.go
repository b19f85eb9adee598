package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// minChunk is how many bytes a server must send within Config.Timeout. The manual of DEBUGINFOD_TIMEOUT says
	// 100K.
	minChunk = 100 << 10
	// firstChunk is how many bytes a server must send in a third of Config.Timeout after its first byte. A server
	// that searches an archive needs time before the first byte, not after it.
	firstChunk = 1 << 10
	// spaceChunk is the number of bytes after which the free space is checked again.
	spaceChunk = 32 << 20
	// progressInterval is the interval of progress events.
	progressInterval = time.Second
	userAgent        = "pg_stat_backtrace"
)

// errStatus means that a server sent an HTTP status other than 200, 404 and 406.
var errStatus = errors.New("HTTP status")

// download downloads one file from one server. It returns ErrNotFound if the server does not have it.
func (c *Client) download(ctx context.Context, s *server, kind Kind, id string) (string, error) {
	d := transfer{client: c, event: Event{File: kind, ID: id, Server: s.name()}, began: time.Now()}
	if c.cfg.MaxTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.cfg.MaxTime,
			fmt.Errorf("%w: not complete after %s", ErrStalled, c.cfg.MaxTime))
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.cfg.Timeout > 0 {
		d.watch = stallTimer(cancel, c.cfg.Timeout, minChunk)
		defer d.watch.Stop()
		d.drip = func() *time.Timer { return stallTimer(cancel, c.cfg.Timeout/3, firstChunk) }
	}
	path, err := d.run(start(ctx, s), s)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return path, err
}

// stallTimer cancels a download after a time, with the error that fewer than least bytes arrived.
func stallTimer(cancel context.CancelCauseFunc, after time.Duration, least int) *time.Timer {
	return time.AfterFunc(after, func() {
		cancel(fmt.Errorf("%w: less than %d KiB in %s", ErrStalled, least>>10, after))
	})
}

// transfer is one download.
type transfer struct {
	client *Client
	event  Event
	began  time.Time
	watch  *time.Timer
	drip   func() *time.Timer // starts the timer for the first chunk; nil: no limit
	told   time.Time
}

// run requests the file, writes it to the cache and verifies it.
func (d *transfer) run(ctx context.Context, s *server) (path string, err error) {
	c := d.client
	resp, err := d.request(ctx, s)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	d.event.Total = max(resp.ContentLength, 0)
	if d.event.Total == 0 {
		d.event.Total = headerSize(resp.Header)
	}
	if limit := c.cfg.MaxSize; limit > 0 && d.event.Total > limit {
		return "", fmt.Errorf("%w: %d bytes, more than %d", ErrTooLarge, d.event.Total, limit)
	}
	temp, err := c.cache.temp(d.event.File, d.event.ID)
	if err != nil {
		return "", localError{err}
	}
	defer func() {
		_ = temp.Close()
		if err != nil {
			c.cache.discard(temp)
		}
	}()
	d.tell(Started)
	if err := d.copy(temp, resp.Body); err != nil {
		return "", err
	}
	if err := verify(temp, d.event.ID); err != nil {
		return "", err
	}
	if path, err = c.cache.deposit(temp, d.event.File, d.event.ID, c.now()); err != nil {
		return "", localError{err}
	}
	d.tell(Arrived)
	return path, nil
}

// request sends the request and checks the status and header of the response.
func (d *transfer) request(ctx context.Context, s *server) (*http.Response, error) {
	u := s.url.JoinPath("buildid", d.event.ID, string(d.event.File))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept-Encoding", "identity")
	if limit := d.client.cfg.MaxSize; limit > 0 {
		req.Header.Set("X-Debuginfod-Maxsize", strconv.FormatInt(limit, 10))
	}
	resp, err := d.client.http.Do(req)
	if err != nil {
		return nil, err
	}
	switch encoding := resp.Header.Get("Content-Encoding"); {
	case resp.StatusCode == http.StatusNotFound:
		err = ErrNotFound
	case resp.StatusCode == http.StatusNotAcceptable:
		err = fmt.Errorf("%w, says the server", ErrTooLarge)
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("%w %d", errStatus, resp.StatusCode)
	case encoding != "" && encoding != "identity":
		err = fmt.Errorf("%w: content encoding %q, which was not requested", ErrRefused, encoding)
	default:
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, err
}

// headerSize returns the size in the header X-Debuginfod-Size, which debuginfod sends with a body of unknown length.
// Without this header it returns 0.
func headerSize(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("X-Debuginfod-Size"), 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// copy writes the body to the file, within all limits.
func (d *transfer) copy(to *os.File, body io.Reader) error {
	limit := d.client.cfg.MaxSize
	if err := d.space(to, d.event.Total); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	first := time.NewTimer(0) // for the first chunk, starting at the first byte
	defer func() { first.Stop() }()
	for chunk, unchecked := 0, 0; ; {
		n, err := body.Read(buf)
		if d.event.Bytes == 0 && n > 0 && d.drip != nil {
			first.Stop()
			first = d.drip()
		}
		if d.event.Bytes += int64(n); d.event.Bytes >= firstChunk {
			first.Stop()
		}
		if limit > 0 && d.event.Bytes > limit {
			return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return localError{err}
		}
		if chunk += n; chunk >= minChunk && d.watch != nil {
			chunk = 0
			d.watch.Reset(d.client.cfg.Timeout)
		}
		if unchecked += n; unchecked >= spaceChunk {
			unchecked = 0
			if err := d.space(to, 0); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case time.Since(d.told) >= progressInterval:
			d.tell(Progress)
		}
	}
}

// space returns ErrNoSpace if too little would stay free after n more bytes. The cache may share its file system with
// a server's data.
func (d *transfer) space(f *os.File, n int64) error {
	least := d.client.cfg.MinFree
	var st unix.Statfs_t
	if least == 0 {
		return nil
	}
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return localError{err}
	}
	//nolint:unconvert // Bsize is a uint32 on s390x
	if free := int64(st.Bavail) * int64(st.Bsize); free-n < least {
		return localError{fmt.Errorf("%w: %d MiB free in %s, to stay free: %d MiB", ErrNoSpace, free>>20,
			d.client.cache.dir, least>>20)}
	}
	return nil
}

// tell reports an event of this download.
func (d *transfer) tell(kind EventKind) {
	d.told = time.Now()
	d.event.Kind, d.event.Took = kind, time.Since(d.began)
	d.client.tell(d.event)
}

// localError is a failure on this host. It does not lead to a pause of the server.
type localError struct{ error }

func (e localError) Unwrap() error { return e.error }
