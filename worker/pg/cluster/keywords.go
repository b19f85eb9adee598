package cluster

import (
	"errors"
	"fmt"
	"strings"
)

// ErrConnString marks an error in a connection string, in its service file or in a PG* variable. A retry cannot help.
var ErrConnString = errors.New("invalid connection settings")

// connError makes an error that is ErrConnString for errors.Is. Its message has no prefix, because it is clear without
// one.
func connError(format string, args ...any) error {
	return &connStringError{fmt.Errorf(format, args...)}
}

type connStringError struct{ error }

func (e *connStringError) Is(target error) bool { return target == ErrConnString }
func (e *connStringError) Unwrap() error        { return e.error }

// use is the way in which a libpq keyword is handled.
type use int

const (
	passed  use = iota // given to pgx, which treats it as libpq does
	ours               // handled in this package
	ignored            // has no meaning here, and may be left out safely
	refused            // an error: libpq supports it, this program does not, and the connection would be less protected without it
)

// keyword describes a libpq keyword. use says how this program handles it, and env is the environment variable that has
// its default; empty: there is none.
type keyword struct {
	use use
	env string
}

// keywords has libpq's keywords of all versions up to 18, and servicefile of 19.
var keywords = map[string]keyword{
	"host": {ours, "PGHOST"}, "hostaddr": {ours, "PGHOSTADDR"}, "port": {ours, "PGPORT"},
	"dbname": {passed, "PGDATABASE"}, "user": {passed, "PGUSER"}, "password": {passed, "PGPASSWORD"},
	"passfile": {ours, "PGPASSFILE"}, "service": {ours, "PGSERVICE"}, "servicefile": {ours, "PGSERVICEFILE"},
	"require_auth": {passed, "PGREQUIREAUTH"}, "channel_binding": {passed, "PGCHANNELBINDING"},
	"connect_timeout": {passed, "PGCONNECT_TIMEOUT"}, "target_session_attrs": {passed, "PGTARGETSESSIONATTRS"},
	"load_balance_hosts":   {ours, "PGLOADBALANCEHOSTS"},
	"min_protocol_version": {passed, "PGMINPROTOCOLVERSION"}, "max_protocol_version": {passed, "PGMAXPROTOCOLVERSION"},

	"options": {ours, "PGOPTIONS"}, "replication": {ours, ""},
	// The worker sets these three itself.
	"application_name": {ignored, "PGAPPNAME"}, "fallback_application_name": {ignored, ""},
	"client_encoding": {ignored, "PGCLIENTENCODING"},

	"keepalives": {ours, ""}, "keepalives_idle": {ours, ""}, "keepalives_interval": {ours, ""},
	"keepalives_count": {ours, ""}, "tcp_user_timeout": {ours, ""},

	"sslmode": {passed, "PGSSLMODE"}, "sslnegotiation": {passed, "PGSSLNEGOTIATION"},
	"sslcert": {passed, "PGSSLCERT"}, "sslkey": {passed, "PGSSLKEY"}, "sslpassword": {passed, "PGSSLPASSWORD"},
	"sslcertmode": {passed, "PGSSLCERTMODE"}, "sslrootcert": {passed, "PGSSLROOTCERT"}, "sslsni": {passed, "PGSSLSNI"},
	"sslcrl": {refused, "PGSSLCRL"}, "sslcrldir": {refused, "PGSSLCRLDIR"},
	"sslcompression": {ignored, "PGSSLCOMPRESSION"}, "sslkeylogfile": {ignored, ""},
	"ssl_min_protocol_version": {ours, "PGSSLMINPROTOCOLVERSION"},
	"ssl_max_protocol_version": {ours, "PGSSLMAXPROTOCOLVERSION"},
	"requirepeer":              {ours, "PGREQUIREPEER"},

	"gssencmode": {ours, "PGGSSENCMODE"}, "krbsrvname": {passed, "PGKRBSRVNAME"},
	"gsslib": {ignored, "PGGSSLIB"}, "gssdelegation": {ignored, "PGGSSDELEGATION"},

	"scram_client_key": {refused, ""}, "scram_server_key": {refused, ""},
	"oauth_issuer": {refused, ""}, "oauth_client_id": {refused, ""}, "oauth_client_secret": {refused, ""},
	"oauth_scope": {refused, ""},
}

// settings are connection settings by keyword.
type settings map[string]string

// set adds a setting. where names its source, for the error about an unknown keyword.
func (s settings) set(name, value, where string) error {
	if _, there := keywords[name]; !there {
		return connError("invalid connection option %q in %s; the keywords are libpq's", name, where)
	}
	s[name] = value
	return nil
}

// words lists the possible values of a keyword. An empty value means libpq's default.
var words = map[string]string{
	"load_balance_hosts": "disable random", "gssencmode": "disable prefer require",
	"ssl_min_protocol_version": "TLSv1 TLSv1.1 TLSv1.2 TLSv1.3",
	"ssl_max_protocol_version": "TLSv1 TLSv1.1 TLSv1.2 TLSv1.3",
}

// check returns an error for values that libpq refuses, and for settings that this program does not support.
func (s settings) check() error {
	for name, choices := range words {
		if value := s[name]; value != "" && !contains(choices, value) {
			return connError("invalid %s value: %q", name, value)
		}
	}
	for name, value := range s {
		k := keywords[name]
		switch {
		case value == "":
		case k.use == refused, name == "gssencmode" && value == "require", name == "replication" && !isNo(value):
			return connError("connection option %s=%s is not supported by this program", name, quoteSecret(name, value))
		case strings.HasPrefix(name, "keepalives"), name == "tcp_user_timeout":
			if _, err := s.integer(name, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func contains(choices, value string) bool {
	for choice := range strings.FieldsSeq(choices) {
		if choice == value {
			return true
		}
	}
	return false
}

func isNo(value string) bool { return contains("false off no 0", strings.ToLower(value)) }

// quoteSecret quotes a value for a message, but leaves out secrets.
func quoteSecret(name, value string) string {
	if strings.Contains(name, "secret") || strings.Contains(name, "key") || strings.Contains(name, "password") {
		return "..."
	}
	return value
}

// parseText reads a connection string, in either of libpq's two forms.
func parseText(text string) (settings, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, connError("the connection string contains a zero byte")
	}
	for _, scheme := range []string{"postgresql://", "postgres://"} {
		if rest, ok := strings.CutPrefix(text, scheme); ok {
			return parseURI(rest)
		}
	}
	return parseWords(text)
}

const blanks = " \t\n\r\v\f"

// parseWords reads keyword = value pairs.
func parseWords(text string) (settings, error) {
	s := settings{}
	for {
		text = strings.TrimLeft(text, blanks)
		if text == "" {
			return s, nil
		}
		end := strings.IndexAny(text, "="+blanks)
		if end < 0 {
			end = len(text)
		}
		name := text[:end]
		text = strings.TrimLeft(text[end:], blanks)
		if text == "" || text[0] != '=' {
			return nil, connError("missing \"=\" after %.40q in the connection string", name)
		}
		value, rest, err := parseValue(strings.TrimLeft(text[1:], blanks))
		if err != nil {
			return nil, err
		}
		if err := s.set(name, value, "the connection string"); err != nil {
			return nil, err
		}
		text = rest
	}
}

// parseValue parses the value, quoted or not, with which the text begins. rest is the text after it.
func parseValue(text string) (value, rest string, err error) {
	quoted := strings.HasPrefix(text, "'")
	if quoted {
		text = text[1:]
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && c == '\'':
			return b.String(), text[i+1:], nil
		case !quoted && strings.IndexByte(blanks, c) >= 0:
			return b.String(), text[i:], nil
		case c == '\\':
			if i++; i < len(text) {
				b.WriteByte(text[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", connError("unterminated quoted string in the connection string")
	}
	return b.String(), "", nil
}
