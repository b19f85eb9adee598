package debuginfod

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// answer is a server's answer, made without a network.
type answer struct {
	status  int
	headers [2]string
	body    []byte
}

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{}
	h.Set("X-Debuginfod-Size", a.headers[0])
	h.Set("Content-Encoding", a.headers[1])
	return &http.Response{
		StatusCode: a.status, Header: h, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: -1, Request: r,
	}, nil
}

// FuzzAnswer checks that any answer of a server gives a file of the right build, or an error and no file.
func FuzzAnswer(f *testing.F) {
	good := elfFile(buildID, 1, 2, 3)
	f.Add(200, "", "", good)
	f.Add(200, "12", "identity", good)
	f.Add(200, "-1", "gzip", good)
	f.Add(200, "99999999999999999999", "", good[:100])
	f.Add(404, "", "", []byte("not found"))
	f.Add(302, "", "", []byte{})
	f.Add(200, "", "", elfFile(otherID))
	f.Fuzz(func(t *testing.T, status int, size, encoding string, body []byte) {
		c, err := New(Config{
			URLs: []string{noServer}, CacheDir: t.TempDir(), MaxSize: 1 << 20, MinFree: None, Timeout: None, MaxTime: None,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.http.Transport = answer{status, [2]string{size, encoding}, body}
		path, err := c.ask(t.Context(), DebugInfo, buildID) // as Fetch does, without goroutines
		if (err == nil) != (path != "") {
			t.Fatalf("%q and %v", path, err)
		}
		if err == nil && !intact(path, buildID) {
			t.Fatal("a file of another build was taken")
		}
		if cached := c.Cached(DebugInfo, buildID); cached != path {
			t.Fatalf("%q is in the cache, %q was given", cached, path)
		}
	})
}
