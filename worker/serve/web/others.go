package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The screen of a worker also shows the servers of the other workers of its host (Config.Ports). The browser asks this worker,
// and this worker asks the other one with the reader's own token. So the page needs no right to reach other origins, the token
// never leaves the host, and the other worker itself decides what the reader may see and start.
const (
	// screenServers lists the workers.
	screenServers = "/screen/servers"
	// screenOther is the begin of the paths for another worker. Its port and a name follow, as in /screen/at/9189/data.
	screenOther = "/screen/at/"
)

// Bounds of an answer of another worker.
const (
	otherAnswer = 64 << 20 // bytes, except of a stream
	otherReason = 500      // bytes of an error
	otherBuffer = 32 << 10
	otherConns  = 64
	otherIdle   = 30 * time.Second
	otherDial   = 2 * time.Second
	otherBegin  = 15 * time.Second // until data begins
	otherWrite  = 30 * time.Second // a client may take so long to receive a part
)

// errCertificate means that another program than a worker has answered, or that the certificate has just changed.
var errCertificate = errors.New("it does not have the certificate of this worker")

// others asks the other workers of the host.
type others struct {
	host, scheme string
	own          int
	ports        func() []int // nil: there are no others
	client       *http.Client
}

// newOthers returns nil if there are no other workers.
func newOthers(cfg *Config, certs *certificates) *others {
	if cfg.Ports == nil || cfg.Address.Network == unixNetwork {
		return nil
	}
	o := &others{host: hostToReach(cfg.Address.Host), scheme: "http", own: cfg.Address.Port, ports: cfg.Ports}
	dialer := &net.Dialer{Timeout: otherDial}
	transport := &http.Transport{
		DialContext: dialer.DialContext, MaxConnsPerHost: otherConns, IdleConnTimeout: otherIdle, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeader,
	}
	if certs != nil {
		o.scheme = "https"
		transport.TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			// The certificate need not be for the address of this host. It must be the same as this worker's.
			InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the certificate itself
			VerifyConnection: func(state tls.ConnectionState) error {
				own, err := certs.get(nil)
				if err != nil {
					return err
				}
				if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, own.Certificate[0]) {
					return errCertificate
				}
				return nil
			},
		}
	}
	o.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return o
}

// hostToReach returns an address at which a listener of this host answers. It resolves no name.
func hostToReach(host string) string {
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil: // localhost; see Address.listen
		return "127.0.0.1"
	case ip.IsUnspecified() && ip.Is4():
		return "127.0.0.1"
	case ip.IsUnspecified():
		return "::1"
	}
	return host
}

// list returns the ports of all workers, at least of this one.
func (o *others) list() (ports []int) {
	ports = slices.Clone(o.ports())
	if !slices.Contains(ports, o.own) {
		ports = append(ports, o.own)
	}
	slices.Sort(ports)
	return ports
}

// of returns the port and the name in a path such as /screen/at/9189/data. The port is the one of another worker of the list,
// so a reader cannot make this worker connect to another program.
func (o *others) of(path string) (port int, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, screenOther)
	if !ok || o == nil {
		return 0, "", false
	}
	number, name, _ := strings.Cut(rest, "/")
	port, err := strconv.Atoi(number)
	if err != nil || strconv.Itoa(port) != number || port == o.own || !slices.Contains(o.ports(), port) {
		return 0, "", false
	}
	return port, name, true
}

// ask makes a request to another worker, with the token of r.
func (o *others) ask(ctx context.Context, r *http.Request, port int, name string, body []byte) (*http.Response, error) {
	u := url.URL{Scheme: o.scheme, Host: net.JoinHostPort(o.host, strconv.Itoa(port)), Path: screenFiles + name, RawQuery: r.URL.RawQuery}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, u.String(), content)
	if err != nil {
		return nil, err
	}
	if token := r.Header.Get("Authorization"); token != "" {
		request.Header.Set("Authorization", token)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	} else if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		request.Header.Set("Accept-Encoding", "gzip")
	}
	answer, err := o.client.Do(request)
	var failed *url.Error
	if errors.As(err, &failed) { // the text of a url.Error has all parameters of the request
		err = failed.Err
	}
	return answer, err
}

// serverList is the answer to a request for the list of workers.
type serverList struct {
	Servers []listedServer `json:"servers"`
}

// listedServer is a worker of this host. Its data is below /screen/at/PORT/, of this worker itself below /screen/.
type listedServer struct {
	Port int  `json:"port"`
	Own  bool `json:"own,omitempty"`
}

// servers answers with the workers of this host.
func (s *Server) servers(w http.ResponseWriter, _ *http.Request) {
	list := serverList{}
	if s.others == nil {
		list.Servers = []listedServer{{Port: s.cfg.Address.Port, Own: true}}
	} else {
		for _, port := range s.others.list() {
			list.Servers = append(list.Servers, listedServer{Port: port, Own: port == s.others.own})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list) //nolint:errchkjson // numbers; an error of w concerns only the client
}

// other answers with data of another worker, or with its stream.
func (s *Server) other(w http.ResponseWriter, r *http.Request) {
	port, name, ok := s.others.of(r.URL.Path)
	switch {
	case ok && name == "data":
		s.forward(w, r, port, name)
	case ok && name == "events":
		s.stream(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.forward(w, r, port, name) }))
	default:
		failf(w, http.StatusNotFound, "no worker of this host serves this address")
	}
}

// isEvents reports whether a path is the stream of this worker or of another one.
func isEvents(path string) bool {
	return path == screenEvents || strings.HasPrefix(path, screenOther) && strings.HasSuffix(path, "/events")
}

// forward passes an answer of another worker on. It keeps the headers of this worker, so that the other worker cannot make a
// browser run its answer as a page.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, port int, name string) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	late := time.AfterFunc(otherBegin, cancel)
	answer, err := s.others.ask(ctx, r, port, name, nil)
	if !late.Stop() && r.Context().Err() == nil {
		err = fmt.Errorf("no answer in %s", otherBegin)
	}
	if err != nil {
		failf(w, http.StatusBadGateway, "the worker at port %d does not answer: %v", port, err)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		if after := answer.Header.Get("Retry-After"); after != "" {
			w.Header().Set("Retry-After", after)
		}
		status, reason := failureOf(answer)
		failf(w, status, "the worker at port %d: %s", port, reason)
		return
	}
	kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && kind != "application/x-ndjson" {
		failf(w, http.StatusBadGateway, "the program at port %d does not answer with data of a screen", port)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Vary", "Accept-Encoding")
	h.Set("X-Accel-Buffering", "no")
	if answer.Header.Get("Content-Encoding") == "gzip" {
		h.Set("Content-Encoding", "gzip")
	}
	var from io.Reader = answer.Body
	if name != "events" {
		from = io.LimitReader(from, otherAnswer)
	}
	passOn(w, from)
}

// passOn copies an answer to the client, and sends each part as soon as it has arrived.
func passOn(w http.ResponseWriter, from io.Reader) {
	control, part := http.NewResponseController(w), make([]byte, otherBuffer)
	for {
		n, err := from.Read(part)
		if n > 0 {
			if control.SetWriteDeadline(time.Now().Add(otherWrite)) != nil {
				return
			}
			if _, failed := w.Write(part[:n]); failed != nil || control.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// failureOf returns the status and the text of an answer without data. A redirect is no answer of a worker.
func failureOf(answer *http.Response) (status int, reason string) {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, otherReason))
	if answer.StatusCode < http.StatusBadRequest {
		return http.StatusBadGateway, fmt.Sprintf("it answers with status %d", answer.StatusCode)
	}
	return answer.StatusCode, strings.TrimSpace(string(text))
}

// forwardAction has another worker run an action. That worker checks the token and its limits, and logs the action too.
func (s *Server) forwardAction(r *http.Request, port int, name string, input actionInput) ([]byte, *actionRefusal) {
	body, err := json.Marshal(input)
	if err != nil {
		return nil, refuseAction(http.StatusInternalServerError, "%v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTime+otherDial)
	defer cancel()
	answer, err := s.others.ask(ctx, r, port, name, body)
	if err != nil {
		return nil, refuseAction(http.StatusBadGateway, "the worker at port %d does not answer: %v", port, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		status, reason := failureOf(answer)
		f := refuseAction(status, "the worker at port %d: %s", port, reason)
		f.ran = true
		return nil, f
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, otherAnswer))
	if err != nil {
		return nil, refuseAction(http.StatusBadGateway, "the answer of the worker at port %d is not complete: %v", port, err)
	}
	return data, nil
}
