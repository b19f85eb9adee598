package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// remote is a connection to a stub of GDB's remote protocol.
type remote struct {
	conn net.Conn
	in   *bufio.Reader
}

// dial waits until the stub listens.
func dial(address string) (*remote, error) {
	deadline := time.Now().Add(20 * time.Second)
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(context.Background(), "tcp", address)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			return &remote{conn: conn, in: bufio.NewReader(conn)}, nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// close ends the program.
func (r *remote) close() {
	_, _ = r.conn.Write([]byte(frame("k")))
	_ = r.conn.Close()
}

// frame puts a packet's text between $ and its checksum.
func frame(text string) string {
	sum := byte(0)
	for i := range len(text) {
		sum += text[i]
	}
	return fmt.Sprintf("$%s#%02x", text, sum)
}

// ask sends a packet and returns the answer.
func (r *remote) ask(text string) (string, error) {
	if _, err := r.conn.Write([]byte(frame(text))); err != nil {
		return "", err
	}
	if _, err := r.in.ReadString('$'); err != nil { // acknowledgement, and the answer's start
		return "", err
	}
	answer, err := r.in.ReadString('#')
	if err != nil {
		return "", err
	}
	if _, err := r.in.Discard(2); err != nil {
		return "", err
	}
	_, err = r.conn.Write([]byte("+"))
	return unescape(strings.TrimSuffix(answer, "#")), err
}

// unescape undoes the escapes of binary data.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '}' && i+1 < len(s) {
			i++
			b.WriteByte(s[i] ^ 0x20)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// runTo lets the program run until it has stopped n times and returns the last signal.
func (r *remote) runTo(n int) (signal int, err error) {
	// The features first: without them the stub does not offer the auxiliary vector.
	if _, err := r.ask("qSupported:xmlRegisters=riscv"); err != nil {
		return 0, err
	}
	command := "c"
	for range n {
		answer, err := r.ask(command)
		if err != nil {
			return 0, err
		}
		if len(answer) < 3 || answer[0] != 'T' && answer[0] != 'S' {
			return 0, fmt.Errorf("the program did not stop: %q", answer)
		}
		s, err := strconv.ParseUint(answer[1:3], 16, 8)
		if err != nil {
			return 0, err
		}
		signal, command = int(s), fmt.Sprintf("C%02x", s)
	}
	return signal, nil
}

// registers returns x0 to x31 and pc.
func (r *remote) registers() ([]uint64, error) {
	answer, err := r.ask("g")
	if err != nil {
		return nil, err
	}
	raw, err := hex.DecodeString(answer)
	if err != nil || len(raw) < 33*8 {
		return nil, fmt.Errorf("registers: %q: %w", answer, err)
	}
	regs := make([]uint64, 33)
	for i := range regs {
		regs[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return regs, nil
}

// auxv returns the auxiliary vector.
func (r *remote) auxv() ([]byte, error) {
	answer, err := r.ask("qXfer:auxv:read::0,1000")
	if err != nil {
		return nil, err
	}
	if answer == "" || answer[0] != 'l' {
		return nil, fmt.Errorf("auxiliary vector: %q", answer)
	}
	return []byte(answer[1:]), nil
}

// pages reads memory from start on as long as it can be read.
func (r *remote) pages(start, end uint64) []byte {
	const step = 1024
	var data []byte
	for at := start; at < end; at += step {
		answer, err := r.ask(fmt.Sprintf("m%x,%x", at, step))
		if err != nil {
			return data
		}
		p, err := hex.DecodeString(answer)
		if err != nil || len(p) != step {
			return data
		}
		data = append(data, p...)
	}
	return data
}
