//go:build linux

package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// relay stands in front of the server and counts what passes, until it is silent: then
// nothing passes, and neither side is told.
type relay struct {
	net.Listener
	server string
	mu     sync.Mutex
	counts counts
	ended  chan counts
	silent atomic.Bool
	over   chan struct{}
}

// end releases what a silent relay holds.
func (r *relay) end() {
	_ = r.Close()
	close(r.over)
}

// pass returns when a message may go on: with a silent relay not before its end.
func (r *relay) pass() {
	if r.silent.Load() {
		<-r.over
	}
}

// counts are those of one connection, from the end of its login to its goodbye.
type counts struct {
	trips                 int // requests, each of any number of messages, that were answered
	there, back           int // messages
	bytesThere, bytesBack int

	open, asking bool
}

func listen(socket, server string) (*relay, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &relay{Listener: l, server: server, ended: make(chan counts, 100), over: make(chan struct{})}
	go r.accept()
	return r, nil
}

// next returns the counts of a connection that has ended, one after the other.
func (r *relay) next() counts { return <-r.ended }

func (r *relay) accept() {
	for {
		client, err := r.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", r.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.counts = counts{}
		r.mu.Unlock()
		go func() {
			_ = relayMessages(server, client, true, r.there)
			_ = server.Close()
		}()
		go func() {
			_ = relayMessages(client, server, false, r.back)
			_ = client.Close()
			r.mu.Lock()
			r.ended <- r.counts
			r.mu.Unlock()
		}()
	}
}

func (r *relay) there(kind byte, size int) {
	r.pass()
	r.mu.Lock()
	defer r.mu.Unlock()
	const terminate = 'X'
	if c := &r.counts; c.open && kind != terminate {
		c.there++
		c.bytesThere += size
		c.asking = true
	}
}

func (r *relay) back(kind byte, size int) {
	r.pass()
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.counts
	const ready = 'Z'
	if c.open {
		c.back++
		c.bytesBack += size
		if c.asking {
			c.trips++
		}
		c.asking = false
	}
	c.open = c.open || kind == ready
}

// relayMessages passes messages on, as many at a time as have arrived together.
// A client's first message has no kind.
func relayMessages(to io.Writer, from io.Reader, first bool, count func(kind byte, size int)) error {
	in := bufio.NewReaderSize(from, 1<<16)
	out := bufio.NewWriterSize(to, 1<<16)
	for {
		head := make([]byte, 5)
		if first {
			head = head[1:]
		}
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[len(head)-4:])
		if first {
			count(0, int(size))
		} else {
			count(head[0], int(size)+1)
		}
		first = false
		if _, err := out.Write(head); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, int64(size)-4); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
