package page

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/screen/source"
	"pg_stat_backtrace/worker/screen/view"
)

// TestAnswersAreCompressed: an answer with 500 sessions and 400 columns needs less than a second on a link with 50 kB/s.
func TestAnswersAreCompressed(t *testing.T) {
	const mostBytes = 50_000
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d := &view.Data{Time: at, Info: &source.Info{}, Load: &source.Load{Classes: []string{source.CPU, source.Lock}}, Sessions: &source.Sessions{}}
	for i := range 400 {
		d.Load.Columns = append(d.Load.Columns, source.Column{Time: at.Add(time.Duration(i) * time.Second), Kind: source.KindSampled,
			Active: []float64{float64(i*7919%100) / 7, float64(i*104729%100) / 9}})
	}
	for i := range 500 {
		start := at.Add(-time.Duration(i*7919%1_000_000) * time.Microsecond)
		d.Sessions.Sessions = append(d.Sessions.Sessions, source.SessionLine{Class: source.Lock, Session: moment.Session{
			PID: 4000 + i, ServerPID: 4000 + i, Application: fmt.Sprint("app ", i%20), User: "web", Database: "shop", State: "active", QueryStart: &start,
			Query: fmt.Sprintf("update stock set qty = qty - 1 where item = %d", i*7919%1000),
		}})
	}
	sizes := map[string]int{}
	for _, encoding := range []string{"", "gzip, br"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/screen/data", nil)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		write(w, r, Answer{d, true, "top"})
		sizes[encoding] = w.Body.Len()
		var body io.Reader = w.Body
		if encoding != "" {
			z, err := gzip.NewReader(body)
			if err != nil {
				t.Fatal(err)
			}
			body = z
		}
		var got Answer
		if err := json.NewDecoder(body).Decode(&got); err != nil || len(got.Sessions.Sessions) != 500 || !got.Names {
			t.Errorf("%q: %v", encoding, err)
		}
	}
	if sizes["gzip, br"] > mostBytes || sizes[""] < 2*mostBytes {
		t.Errorf("%v bytes", sizes)
	}
	t.Log(sizes)
}
