package page

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// Bounds of a stream.
const (
	streamPeriod = time.Second
	// streamWrite is the longest time that sending one line to a client may take. A stream has no other deadline.
	streamWrite = 30 * time.Second
)

// lineType is the Content-Type of a stream in which each line is a JSON document.
const lineType = "application/x-ndjson"

var errNotLive = errors.New("events are of the live server: leave out from, to and at, or request data instead")

// Events answers with a stream of lines. A line is sent once a second, until the request's context ends. A line is the Answer
// that Data would give at that time for the same parameters. A client that receives slowly gets fewer lines, each with the
// data of the moment of sending. All lines are compressed as one text, so the parts of a line that have not changed need
// little space.
func (p *Page) Events(names bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Type", lineType)
			return
		}
		ctx := r.Context()
		var out *lineWriter
		for next := time.Now(); ; {
			s, err := parse(r.URL.RawQuery) // again for each line, because parse computes times relative to now
			if err == nil && s.Span != (source.Span{}) {
				err = errNotLive
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			answer, err := p.answer(ctx, s, names)
			if out == nil {
				if err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				out = newLineWriter(w, r)
			}
			// After the first line, an error ends the stream. The client repeats the request, and the answer has the reason.
			if err != nil || ctx.Err() != nil || out.write(answer) != nil {
				return
			}
			if next = next.Add(streamPeriod); next.Before(time.Now()) {
				next = time.Now()
			}
			pause := time.NewTimer(time.Until(next))
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
				return
			}
		}
	})
}

// lineWriter sends each line at once: it flushes the compressor and the connection.
type lineWriter struct {
	out   io.Writer
	zip   *gzip.Writer // nil: the client does not accept gzip
	reply *http.ResponseController
}

func newLineWriter(w http.ResponseWriter, r *http.Request) *lineWriter {
	h := w.Header()
	h.Set("Content-Type", lineType)
	h.Set("Vary", "Accept-Encoding")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx collects lines before it sends them
	l := &lineWriter{out: w, reply: http.NewResponseController(w)}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		l.zip, _ = gzip.NewWriterLevel(w, gzip.BestSpeed) // no error, as the level is valid
		l.out = l.zip
	}
	return l
}

func (l *lineWriter) write(answer Answer) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	if err := l.reply.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil {
		return err
	}
	if _, err := l.out.Write(append(text, '\n')); err != nil {
		return err
	}
	if l.zip != nil {
		if err := l.zip.Flush(); err != nil {
			return err
		}
	}
	return l.reply.Flush()
}
