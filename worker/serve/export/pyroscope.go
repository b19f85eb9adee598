package export

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"

	"google.golang.org/protobuf/encoding/protowire"
)

// pushPath is the path of the method by which Pyroscope receives profiles (Connect protocol).
const pushPath = "/push.v1.PusherService/Push"

// Numbers of fields of push.v1 and types.v1. The comment at the first field of each message is the message's name.
const (
	pushSeries    = 1 // PushRequest
	seriesLabels  = 1 // RawProfileSeries
	seriesSamples = 2
	sampleProfile = 1 // RawSample
	sampleID      = 2
	labelName     = 1 // LabelPair
	labelValue    = 2
)

// profileNames are the values of the label __name__ by mode. Pyroscope takes process_cpu as the name of CPU profiles.
var profileNames = map[string]string{"cpu": "process_cpu", "offcpu": "offcpu", "wall": "wall"}

// pushRequest encodes a push.v1.PushRequest.
func pushRequest(c *Config, all []series) ([]byte, error) {
	var request []byte
	for _, s := range all {
		var raw bytes.Buffer
		if err := s.profile.Write(&raw); err != nil {
			return nil, fmt.Errorf("encode a profile: %w", err)
		}
		var message []byte
		for _, l := range [][2]string{
			{"__name__", profileNames[c.Mode]}, {"service_name", c.Cluster}, {labelCluster, c.Cluster},
			{labelBackend, s.backendType}, {labelMode, c.Mode}, {"instance", c.Host},
		} {
			if l[1] == "" {
				continue
			}
			var pair []byte
			pair = appendString(pair, labelName, l[0])
			pair = appendString(pair, labelValue, l[1])
			message = appendBytes(message, seriesLabels, pair)
		}
		var sample []byte
		sample = appendBytes(sample, sampleProfile, raw.Bytes())
		sample = appendString(sample, sampleID, uuid())
		message = appendBytes(message, seriesSamples, sample)
		request = appendBytes(request, pushSeries, message)
	}
	return request, nil
}

// uuid returns a random UUID.
func uuid() string {
	id := random16()
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	text := hex.EncodeToString(id)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

func random16() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // crypto/rand.Read never returns an error
	return id
}

func appendBytes(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// appendString appends a field, unless value is empty, the default.
func appendString(to []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// appendNumber appends a field, unless value is 0, the default.
func appendNumber[N int | int32 | int64 | uint64](to []byte, field protowire.Number, value N) []byte {
	if value == 0 {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), uint64(value))
}

// pyroscope is the protocol of Pyroscope.
type pyroscope struct{}

func (pyroscope) url(base *url.URL) string { return base.JoinPath(pushPath).String() }

func (pyroscope) header(h http.Header) {
	h.Set("Content-Type", "application/proto")
	h.Set("Connect-Protocol-Version", "1")
}

// errAnswer means that the program at the URL is not a receiver of profiles.
var errAnswer = errors.New("the answer is not one of a receiver of profiles; check the URL")

// accepted checks the answer to a successful request. Pyroscope refuses all profiles of a request or none.
func (pyroscope) accepted(contentType string, body []byte) (rejected uint64, err error) {
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != "application/proto" {
		return 0, fmt.Errorf("%w (Content-Type %.60q)", errAnswer, contentType)
	}
	return 0, eachField(body, func(protowire.Number, protowire.Type, []byte) error { return nil })
}

// refusal returns the text of an answer with an error status; empty if the answer is not in Pyroscope's form.
func (pyroscope) refusal(body []byte) string {
	var message struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &message) != nil {
		return ""
	}
	return message.Code + ": " + message.Message
}

// eachField calls f with the fields of an encoded message. value is the field's content as encoded; a length precedes
// bytes.
func eachField(message []byte, f func(n protowire.Number, t protowire.Type, value []byte) error) error {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errAnswer
		}
		message = message[size:]
		size = protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return errAnswer
		}
		if err := f(number, kind, message[:size]); err != nil {
			return err
		}
		message = message[size:]
	}
	return nil
}
