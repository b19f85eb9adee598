package rules

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Alert is the message for a receiver. It must have no names of objects and no texts of statements.
type Alert struct {
	// Name is the name of the rule. Labels identify the alert, and Annotations describe it.
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Since       time.Time
	// Until is the time of the last look that had the cause; zero: the incident has not ended.
	Until time.Time
	// Key identifies the cause.
	Key string
}

// WebhookTarget is a receiver of alerts.
type WebhookTarget struct {
	URL string
	// Timeout bounds one attempt; 0: 5 seconds.
	Timeout time.Duration
}

const (
	queueLength    = 16
	defaultTimeout = 5 * time.Second
	firstPause     = time.Second
	attempts       = 3
	lastTime       = 3 * time.Second // for the last attempts when the worker ends
	maxAnswer      = 64 << 10        // bytes that are read of an answer
	receiver       = "pg_stat_backtrace"
)

// WebhookSender sends alerts. It is safe for concurrent use.
type WebhookSender struct {
	queue   chan job
	dropped atomic.Int64
	client  *http.Client
	log     zerolog.Logger
	// pause is the time between the first failed attempt and the second one. It is four times as long before each further attempt.
	pause time.Duration
}

type job struct {
	alert  Alert
	target WebhookTarget
}

// NewWebhookSender returns a WebhookSender. The caller must call Run, which sends the alerts. The log gets a line for each alert
// that was not delivered.
func NewWebhookSender(log zerolog.Logger) *WebhookSender {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, MaxResponseHeaderBytes: maxAnswer, DisableKeepAlives: true,
	}
	return &WebhookSender{
		queue: make(chan job, queueLength), log: log, pause: firstPause,
		client: &http.Client{
			Transport: transport,
			// A redirect would lead to an address that the configuration does not name.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Send queues an alert. It never blocks. It returns false if it has dropped the alert because the queue is full.
func (s *WebhookSender) Send(t WebhookTarget, a Alert) bool {
	select {
	case s.queue <- job{a, t}:
		return true
	default:
		s.dropped.Add(1)
		return false
	}
}

// Dropped returns the number of alerts, since the start, for which the queue had no room.
func (s *WebhookSender) Dropped() int64 { return s.dropped.Load() }

// Run sends the alerts until ctx ends. Then it makes one more attempt for each alert that is not delivered, within lastTime for all,
// because the next worker does not send these alerts again.
func (s *WebhookSender) Run(ctx context.Context) {
	var waiting []job
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case j := <-s.queue:
			if err := s.deliver(ctx, j); err != nil && ctx.Err() != nil {
				waiting = append(waiting, j)
			} else {
				s.report(&j, err)
			}
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	for len(s.queue) > 0 { // no other goroutine receives
		waiting = append(waiting, <-s.queue)
	}
	for i := range waiting {
		body, err := waiting[i].alert.JSON()
		if err == nil {
			_, err = s.post(last, waiting[i].target, body)
		}
		s.report(&waiting[i], err)
	}
}

// report logs an alert that was not delivered because of an error; nil: it was delivered.
func (s *WebhookSender) report(j *job, err error) {
	if err != nil {
		s.log.Warn().Err(err).Str("rule", j.alert.Name).Msg("alert was not delivered")
	}
}

// JSON returns the alert as the body of a webhook request.
func (a *Alert) JSON() ([]byte, error) { return json.Marshal(messageOf(a)) }

// deliver makes up to three attempts to post an alert, and returns the error of the last one.
func (s *WebhookSender) deliver(ctx context.Context, j job) error {
	body, err := j.alert.JSON()
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	pause := s.pause
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
			pause *= 4
		}
		var again bool
		if again, err = s.post(ctx, j.target, body); err == nil || !again {
			return err
		}
	}
	return err
}

// post makes one attempt. again reports whether another attempt may succeed. The error does not contain the address, which may have
// a password.
func (s *WebhookSender) post(ctx context.Context, t WebhookTarget, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(t.Timeout, defaultTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("webhook: the address cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", receiver)
	answer, err := s.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return true, fmt.Errorf("webhook: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	const good, redirect, server = 2, 3, 5
	status := strings.TrimSpace(fmt.Sprint(answer.StatusCode, " ", http.StatusText(answer.StatusCode)))
	switch class := answer.StatusCode / 100; class {
	case good:
		return false, nil
	case redirect:
		return false, fmt.Errorf("webhook: the receiver answered %s, and redirects are not followed: "+
			"write the final address into the rules", status)
	default:
		return class == server || answer.StatusCode == http.StatusTooManyRequests, fmt.Errorf("webhook: the receiver answered %s", status)
	}
}

// message is the body of a webhook request, as Alertmanager's documentation of webhook_config describes it.
type message struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	Truncated         int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []alert           `json:"alerts"`
}

type alert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"` // zero: not ended
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

func messageOf(a *Alert) *message {
	status := "firing"
	until := a.Until
	if !until.IsZero() {
		status, until = "resolved", until.UTC()
	}
	labels := map[string]string{"alertname": a.Name}
	maps.Copy(labels, a.Labels)
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(a.Name + "\x00" + a.Key))
	return &message{
		Version: "4", GroupKey: fmt.Sprintf("{}:{alertname=%q}", a.Name), Status: status, Receiver: receiver,
		GroupLabels: map[string]string{"alertname": a.Name}, CommonLabels: labels, CommonAnnotations: a.Annotations,
		Alerts: []alert{{
			Status: status, Labels: labels, Annotations: a.Annotations, StartsAt: a.Since.UTC(), EndsAt: until,
			Fingerprint: fmt.Sprintf("%016x", hash.Sum64()),
		}},
	}
}
