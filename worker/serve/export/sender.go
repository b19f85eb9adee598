package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// protocol has the parts of sending that depend on the type of receiver.
type protocol interface {
	url(base *url.URL) string
	header(h http.Header)
	// accepted checks the answer to a successful request, and returns the number of profiles that the receiver refused.
	accepted(contentType string, body []byte) (refused uint64, err error)
	// refusal returns the text of an answer with an error status; empty: the answer has no text.
	refusal(body []byte) string
}

// sender sends the batches for one receiver. A batch is a request with the series of one profile.
type sender struct {
	kind     string
	log      zerolog.Logger
	base     *url.URL
	protocol protocol
	cfg      *Config
	timing   timing
	spool    *spool
	client   *http.Client
	headers  http.Header // content of the file with headers at the last successful read; nil: none yet
	reported string      // the last error about the file with headers that was logged

	sent, failed atomic.Uint64
}

// maxAnswer is the largest answer that is read, in bytes.
const maxAnswer = 64 << 10

// newSender makes a sender. It follows no redirect, because secret headers must not go to a host that was not configured.
func newSender(kind string, base *url.URL, p protocol, cfg *Config, s *spool) *sender {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if ok {
		transport = transport.Clone()
	} else {
		transport = &http.Transport{}
	}
	transport.MaxIdleConns, transport.MaxConnsPerHost = 1, 1
	transport.MaxResponseHeaderBytes = maxAnswer
	t := cfg.timing.withDefaults()
	return &sender{
		kind: kind, log: cfg.Log.With().Str("receiver", kind).Logger(), base: base, protocol: p, cfg: cfg, timing: t, spool: s,
		headers: cfg.Headers,
		client: &http.Client{
			Transport: transport, Timeout: t.request,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// run sends until ctx ends.
func (s *sender) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	sending, reading := failures{sender: s}, failures{sender: s}
	for ctx.Err() == nil {
		b, data, added, err := s.spool.next(s.kind)
		switch {
		case b != nil:
			s.attempt(ctx, b, data, &sending)
		case err != nil:
			reading.note("cannot read a profile that waits on disk, trying again", err)
			s.rest(ctx, jitter(reading.pause), added)
		default:
			reading = failures{sender: s}
			select {
			case <-ctx.Done():
			case <-added:
			}
		}
	}
}

// attempt sends a batch, and removes it from the spool if the receiver accepts it or finally refuses it. Otherwise attempt
// releases the batch and waits before it returns.
func (s *sender) attempt(ctx context.Context, b *batch, data []byte, f *failures) {
	refused, wait, err := s.send(ctx, data)
	var final *refusedError
	switch {
	case ctx.Err() != nil:
		s.spool.release(b)
	case err == nil:
		refused = min(refused, uint64(b.profiles))
		s.sent.Add(uint64(b.profiles) - refused)
		s.spool.finish(b, refused)
		if refused > 0 {
			s.log.Warn().Err(fmt.Errorf("the receiver refused profiles: %d", refused)).Msg(givenUp)
		}
		f.end()
	case errors.As(err, &final):
		s.spool.finish(b, uint64(b.profiles))
		s.log.Warn().Err(err).Msg(givenUp)
	default:
		s.spool.release(b)
		s.failed.Add(1)
		f.note("the receiver does not accept profiles, trying again", err)
		s.rest(ctx, max(min(wait, s.timing.maxPause), jitter(f.pause)), nil)
	}
}

// failures has the pause and the error of the failed attempts since the last success.
type failures struct {
	sender   *sender
	pause    time.Duration // grows with each failure
	reported string        // the last error that was logged; empty: none
}

// note logs an error if it differs from the error of the attempt before, and doubles the pause up to timing.maxPause.
func (f *failures) note(message string, err error) {
	if err.Error() != f.reported {
		f.reported = err.Error()
		f.sender.log.Warn().Err(err).Msg(message)
	}
	f.pause = min(max(2*f.pause, f.sender.timing.minPause), f.sender.timing.maxPause)
}

// end logs the first success after failures.
func (f *failures) end() {
	if f.reported != "" {
		f.sender.log.Info().Msg("the receiver accepts profiles again")
	}
	f.pause, f.reported = 0, ""
}

// jitter returns a random time from d/2 to 3d/2, so that many workers do not retry at the same time.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1)) //nolint:gosec // chance, not a secret
}

// rest waits for d, or until the channel early is closed or ctx ends.
func (s *sender) rest(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-early:
	case <-timer.C:
	}
}

// refusedError means that the receiver refuses a batch, and that a retry would not help.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// send sends the data of a batch. It returns the number of profiles that the receiver refused. If sending fails, wait is the
// pause that the receiver demands before the next attempt; 0: none. The error is a refusedError if a retry would not help.
func (s *sender) send(ctx context.Context, data []byte) (refused uint64, wait time.Duration, err error) {
	r, err := s.request(ctx, data)
	if err != nil {
		return 0, 0, err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		// The text of url.Error has the URL, which may contain a password.
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return 0, 0, fmt.Errorf("send to %s: %w", s.base.Host, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("read the answer of %s: %w", s.base.Host, err)
	case len(body) > maxAnswer:
		return 0, 0, errAnswer
	case answer.StatusCode == http.StatusOK:
		refused, err = s.protocol.accepted(answer.Header.Get("Content-Type"), body)
		return refused, 0, err
	case answer.StatusCode >= http.StatusMultipleChoices && answer.StatusCode < http.StatusBadRequest:
		return 0, 0, fmt.Errorf("%s redirects (status %d), which is not followed; give the URL that it redirects to",
			s.base.Host, answer.StatusCode)
	}
	text := fmt.Sprintf("%s answers with status %d", s.base.Host, answer.StatusCode)
	if reason := strings.TrimSpace(s.protocol.refusal(body)); reason != "" {
		text += fmt.Sprintf(": %.300s", reason)
	}
	switch answer.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return 0, 0, &refusedError{text}
	}
	seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31)
	if err == nil {
		wait = time.Duration(seconds) * time.Second
	}
	return 0, wait, errors.New(text)
}

// request makes a request with data, compressed, and the configured headers.
func (s *sender) request(ctx context.Context, data []byte) (*http.Request, error) {
	var body bytes.Buffer
	compressed := gzip.NewWriter(&body)
	if _, err := compressed.Write(data); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.protocol.url(s.base), &body)
	if err != nil {
		return nil, err
	}
	if s.cfg.HeaderFile != "" {
		if err := s.readHeaders(); err != nil {
			return nil, err
		}
		r.Header = s.headers.Clone()
	}
	s.protocol.header(r.Header)
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Set("User-Agent", "pg_stat_backtrace/"+s.cfg.Version)
	return r, nil
}

// readHeaders reads HeaderFile. If the worker has no permission to read the file, the content that it read before stays in
// use.
func (s *sender) readHeaders() error {
	headers, err := ReadHeaders(s.cfg.HeaderFile)
	switch {
	case err == nil:
		s.headers, s.reported = headers, ""
	case s.headers == nil || !errors.Is(err, fs.ErrPermission):
		return err
	case err.Error() != s.reported:
		s.reported = err.Error()
		s.log.Warn().Err(err).Msg("the file with headers cannot be read, its last content stays in use; " +
			"restart the worker after a change")
	}
	return nil
}
