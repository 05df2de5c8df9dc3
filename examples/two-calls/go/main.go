// Orders that are placed once: the order and the record of its key commit together.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/lib/pq"
)

const (
	bodyBytesMax   = 1 << 20
	connectionsMax = 20
	attemptsMax    = 3
	waitSecondsMax = 30
)

// What hapax.start refuses, by SQLSTATE.
var refusals = map[pq.ErrorCode]int{
	"HX409": 409, "HX410": 410, "HX418": 409, "HX419": 409, "HX422": 422,
}

var preferWait = regexp.MustCompile(`\bwait=(\d{1,4})`)

type order struct {
	user, key, item string
	body            []byte
	wait            sql.NullString
}

type answer struct {
	status  int
	headers map[string]string
	body    []byte
}

// Places the order, or finds the answer that an earlier request with this key got.
func place(ctx context.Context, db *sql.DB, o order) (a answer, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return a, err
	}
	defer tx.Rollback() // Does nothing after a commit.

	var run bool
	var operation sql.NullString
	var fence, status sql.NullInt64
	var headers, body []byte
	err = tx.QueryRowContext(ctx,
		`SELECT * FROM hapax.start('shop', $1, 'POST /orders', $2, hapax.fingerprint($3::jsonb), $4)`,
		o.user, o.key, string(o.body), o.wait,
	).Scan(&run, &operation, &fence, &status, &headers, &body)
	if err != nil {
		return a, err
	}
	if !run {
		a = answer{status: int(status.Int64), body: body}
		err = json.Unmarshal(headers, &a.headers)
		if err == nil {
			a.headers["Idempotent-Replayed"] = "true"
		}
		return a, err
	}

	// The key stays claimed if the insert fails.
	if _, err = tx.ExecContext(ctx, "SAVEPOINT claimed"); err != nil {
		return a, err
	}
	var id int64
	err = tx.QueryRowContext(ctx,
		"INSERT INTO orders (item, placed_by) VALUES ($1, $2) RETURNING id", o.item, o.user,
	).Scan(&id)
	switch code, _ := sqlstate(err); {
	case err == nil:
		a = reply(201, map[string]any{"id": id, "item": o.item})
		a.headers["Location"] = fmt.Sprintf("/orders/%d", id)
	case code == "23503": // No such item.
		if _, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT claimed"); err != nil {
			return a, err
		}
		a = refuse(404, "no such item")
	default:
		return a, err
	}

	if headers, err = json.Marshal(a.headers); err != nil {
		return a, err
	}
	_, err = tx.ExecContext(ctx, "SELECT hapax.complete($1, $2, $3, $4::jsonb, $5::bytea)",
		operation, fence, a.status, string(headers), a.body)
	if err != nil {
		return a, err
	}
	return a, tx.Commit()
}

func placeOrRefuse(ctx context.Context, db *sql.DB, o order) answer {
	for attempt := 1; ; attempt++ {
		a, err := place(ctx, db, o)
		if err == nil {
			return a // Committed. Only now is there something to tell.
		}
		code, message := sqlstate(err)
		if (code == "40001" || code == "40P01") && attempt < attemptsMax {
			continue // The server rolled it back, and asks for another attempt.
		}
		if status, ok := refusals[code]; ok {
			word, _, _ := strings.Cut(message, ":")
			a = refuse(status, word)
			if code == "HX409" {
				a.headers["Retry-After"] = "1"
			}
			return a
		}
		if strings.HasPrefix(string(code), "22") { // A value that Postgres or hapax.start does not take.
			return refuse(400, message)
		}
		// Nothing was kept, or the reply to COMMIT was lost: the key may be sent again.
		log.Printf("orders: %s %v", code, err)
		return refuse(503, "try again")
	}
}

func sqlstate(err error) (pq.ErrorCode, string) {
	var failed *pq.Error
	if errors.As(err, &failed) {
		return failed.Code, failed.Message
	}
	return "", ""
}

func respond(db *sql.DB, r *http.Request) answer {
	// In real life: whoever your authentication says it is, never what the client says.
	o := order{user: r.Header.Get("X-User"), key: r.Header.Get("Idempotency-Key")}
	if o.user == "" {
		return refuse(401, "who are you?")
	}
	if o.key == "" {
		return refuse(400, "send an Idempotency-Key")
	}
	var err error
	if o.body, err = io.ReadAll(r.Body); err != nil {
		return refuse(413, "a body has 1 MiB at most")
	}
	var sent struct{ Item *string }
	if json.Unmarshal(o.body, &sent) != nil || sent.Item == nil {
		return refuse(400, `send {"item": "..."}`)
	}
	o.item = *sent.Item
	if wait := preferWait.FindStringSubmatch(r.Header.Get("Prefer")); wait != nil {
		seconds, _ := strconv.Atoi(wait[1])
		if seconds > waitSecondsMax {
			seconds = waitSecondsMax
		}
		o.wait = sql.NullString{String: fmt.Sprintf("%d seconds", seconds), Valid: true}
	}
	return placeOrRefuse(r.Context(), db, o)
}

func reply(status int, content map[string]any) answer {
	body, _ := json.Marshal(content)
	return answer{status, map[string]string{"Content-Type": "application/json"}, body}
}

func refuse(status int, message string) answer {
	return reply(status, map[string]any{"error": message})
}

func main() {
	// lib/pq insists on TLS unless it is told otherwise, here or by sslmode in DATABASE_URL.
	if os.Getenv("PGSSLMODE") == "" {
		os.Setenv("PGSSLMODE", "disable")
	}
	db, err := sql.Open("postgres", env("DATABASE_URL", "postgresql://orders@127.0.0.1/shop"))
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(connectionsMax)
	http.HandleFunc("/orders", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, bodyBytesMax)
		a := refuse(405, "POST an order")
		if r.Method == http.MethodPost {
			a = respond(db, r)
		}
		for name, value := range a.headers {
			w.Header().Set(name, value)
		}
		w.WriteHeader(a.status)
		w.Write(a.body)
	})
	port := env("PORT", "8080")
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", port)
	log.Fatal(http.Serve(listener, nil))
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
