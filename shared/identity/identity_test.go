package identity

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// now is when these tests take place.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// token is what a metadata server gives out: its claims can be read, its signature means nothing here.
func token(claims string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256"}`)) + "." + part([]byte(claims)) + "." + part([]byte("signature"))
}

func tokenUntil(expires time.Time, extra string) string {
	return token(fmt.Sprintf(`{"exp":%d,"sub":%q}`, expires.Unix(), extra))
}

// server is a metadata server as the platform has one: it wants the header, and marks its answers.
func server(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != path || r.URL.Query().Get("format") != "full" {
			http.Error(w, "not how one asks", http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestATokenIsKeptUntilFiveMinutesBeforeItsEnd(t *testing.T) {
	var fetched atomic.Int32
	host := server(t, func(w http.ResponseWriter, r *http.Request) {
		n := fetched.Add(1)
		fmt.Fprintln(w, tokenUntil(now.Add(time.Duration(n)*time.Hour), r.URL.Query().Get("audience")))
	})
	clock := now
	s := Metadata(Options{Host: host, Now: func() time.Time { return clock }})
	for _, step := range []struct {
		name     string
		at       time.Duration
		audience string
		want     int32 // fetches so far
	}{
		{"the first call fetches", 0, "https://a.example", 1},
		{"the next is answered from memory", time.Minute, "https://a.example", 1},
		{"another audience has a token of its own", time.Minute, "https://b.example", 2},
		{"just before the margin the token is kept", 55*time.Minute - time.Second, "https://a.example", 2},
		{"within the margin it is fetched anew", 55 * time.Minute, "https://a.example", 3},
		{"and the new one is kept", 56 * time.Minute, "https://a.example", 3},
	} {
		clock = now.Add(step.at)
		got, err := s.Token(t.Context(), step.audience)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if strings.ContainsAny(got, " \n") || !strings.Contains(got, ".") {
			t.Errorf("%s: token %q has blanks, or is none", step.name, got)
		}
		if n := fetched.Load(); n != step.want {
			t.Errorf("%s: %d fetches, want %d", step.name, n, step.want)
		}
	}
}

func TestManyCallersWaitForOneFetch(t *testing.T) {
	const callers = 50
	var fetched atomic.Int32
	asked, answer := make(chan struct{}), make(chan struct{})
	host := server(t, func(w http.ResponseWriter, _ *http.Request) {
		if fetched.Add(1) == 1 {
			close(asked)
		}
		<-answer
		fmt.Fprint(w, tokenUntil(now.Add(time.Hour), ""))
	})
	s := Metadata(Options{Host: host, Now: func() time.Time { return now }})
	// The first caller goes away while the fetch is under way: it is not the fetch's owner.
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.Token(ctx, "https://a.example")
		first <- err
	}()
	<-asked
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("who left gets %v, want its context's error", err)
	}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if _, err := s.Token(t.Context(), "https://a.example"); err != nil {
				t.Errorf("a caller that waits: %v", err)
			}
		})
	}
	close(answer)
	wg.Wait()
	if n := fetched.Load(); n != 1 {
		t.Errorf("%d fetches for %d callers, want 1", n, callers+1)
	}
}

func TestWhatAServerMayAnswer(t *testing.T) {
	const secret = "do-not-print"
	good := tokenUntil(now.Add(time.Hour), secret)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	t.Cleanup(elsewhere.Close)
	for name, tt := range map[string]struct {
		answer    http.HandlerFunc
		want      string // in the error; "" for success
		wantErr   error
		wantCalls int32
	}{
		"a server that is not up yet is asked again": {
			answer: once(func(w http.ResponseWriter) { http.Error(w, "starting", http.StatusServiceUnavailable) }, good), wantCalls: 2,
		},
		"a server that breaks off is asked again": {
			answer: once(func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, good), wantCalls: 2,
		},
		"a server that stays away is given up after four tries": {
			answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusInternalServerError) },
			want:   "status 500", wantErr: ErrUnavailable, wantCalls: 4,
		},
		"a workload without an account is told so": {
			answer: http.NotFound, want: "has the workload a service account?", wantErr: ErrRefused, wantCalls: 1,
		},
		"a refusal is not repeated": {
			answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusForbidden) },
			want:   "status 403", wantErr: ErrRefused, wantCalls: 1,
		},
		"a redirect is refused": {
			answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
			want:   "redirects are not followed", wantErr: ErrRefused, wantCalls: 1,
		},
		"an answer without the mark is somebody else's": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Del("Metadata-Flavor")
				fmt.Fprint(w, good)
			},
			want: "something else answers", wantErr: ErrRefused, wantCalls: 1,
		},
		"an endless answer is cut off": {
			answer: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(secret, 10_000)) },
			want:   "over 16384 bytes", wantErr: ErrRefused, wantCalls: 1,
		},
		"text that is no token is refused": {
			answer: text(secret), want: "1 parts, want 3", wantErr: ErrRefused, wantCalls: 1,
		},
		"claims that are not base64 are refused": {
			answer: text("a.***.c"), want: "not base64url", wantErr: ErrRefused, wantCalls: 1,
		},
		"a token without an end is refused": {
			answer: text(token(`{"sub":"do-not-print"}`)), want: "claim exp is missing", wantErr: ErrRefused, wantCalls: 1,
		},
		"an end beyond all times is refused": {
			answer: text(token(`{"exp":1e300}`)), want: "claim exp is missing, or no time", wantErr: ErrRefused, wantCalls: 1,
		},
		"a token that is over already is refused": {
			answer: text(tokenUntil(now.Add(-time.Second), "")), want: "expired at 2026-03-01T11:59:59Z", wantErr: ErrRefused, wantCalls: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			host := server(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				tt.answer(w, r)
			})
			got, err := Metadata(Options{Host: host, Now: func() time.Time { return now }}).Token(t.Context(), "https://a.example")
			if n := calls.Load(); n != tt.wantCalls {
				t.Errorf("%d calls, want %d", n, tt.wantCalls)
			}
			if tt.want == "" {
				if err != nil || got != good {
					t.Errorf("token %q, error %v, want the server's", got, err)
				}
				return
			}
			if err == nil || !errors.Is(err, tt.wantErr) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one of kind %v that says %q", err, tt.wantErr, tt.want)
			}
			for _, where := range []string{"https://a.example", host} {
				if !strings.Contains(err.Error(), where) {
					t.Errorf("error %q does not say %s", err, where)
				}
			}
			if strings.Contains(err.Error(), secret) || got != "" {
				t.Errorf("error %q tells what the server said, or a token came with it", err)
			}
		})
	}
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
}

// once fails the first request and answers the others.
func once(fail func(http.ResponseWriter), answer string) http.HandlerFunc {
	var n atomic.Int32
	return func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 1 {
			fail(w)
			return
		}
		fmt.Fprint(w, answer)
	}
}

func TestAnOutageWithinTheMarginIsOutlived(t *testing.T) {
	var away atomic.Bool
	good := tokenUntil(now.Add(time.Hour), "")
	host := server(t, func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			http.Error(w, "away", http.StatusForbidden)
			return
		}
		fmt.Fprint(w, good)
	})
	clock := now
	s := Metadata(Options{Host: host, Now: func() time.Time { return clock }})
	if _, err := s.Token(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	clock = now.Add(57 * time.Minute)
	if got, err := s.Token(t.Context(), "a"); err != nil || got != good {
		t.Errorf("three minutes before the end: %q, %v, want the token that is still good", got, err)
	}
	clock = now.Add(59*time.Minute + 30*time.Second)
	if _, err := s.Token(t.Context(), "a"); !errors.Is(err, ErrRefused) {
		t.Errorf("half a minute before the end: %v, want an error", err)
	}
}

func TestAServerThatHangsIsBounded(t *testing.T) {
	release := make(chan struct{})
	host := server(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	_, err := Metadata(Options{Host: host, Timeout: 20 * time.Millisecond}).Token(t.Context(), "a")
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v, want %v", err, ErrUnavailable)
	}
}

func TestTheEnvironmentNamesTheServer(t *testing.T) {
	t.Setenv(EnvHost, server(t, text(tokenUntil(time.Now().Add(time.Hour), ""))))
	if _, err := Metadata(Options{}).Token(t.Context(), "https://a.example"); err != nil {
		t.Error(err)
	}
}

func TestAudiencesThatAreNone(t *testing.T) {
	s := Metadata(Options{Host: "127.0.0.1:1"})
	for name, audience := range map[string]string{
		"nothing":           "",
		"a blank":           "https://a example",
		"a line break":      "https://a\r\nX: y",
		"outside ASCII":     "https://ä.example",
		"longer than a URL": "https://" + strings.Repeat("a", maxAudience),
	} {
		if _, err := s.Token(t.Context(), audience); err == nil || !strings.Contains(err.Error(), "audience") {
			t.Errorf("%s: error %v, want one about the audience", name, err)
		}
	}
}

func TestAudiencesKeptAreBounded(t *testing.T) {
	host := server(t, text(tokenUntil(now.Add(time.Hour), "")))
	m := Metadata(Options{Host: host, Now: func() time.Time { return now }}).(*metadata)
	for i := range maxAudiences {
		m.audiences[fmt.Sprint(i)] = &entry{token: "t", expires: now.Add(time.Hour + time.Duration(i)*time.Second)}
	}
	if _, err := m.Token(t.Context(), "https://a.example"); err != nil {
		t.Fatal(err)
	}
	if n := len(m.audiences); n != maxAudiences || m.audiences["0"] != nil {
		t.Errorf("%d audiences are kept, want %d without the one that ends soonest", n, maxAudiences)
	}
}

func TestOnPlatform(t *testing.T) {
	for what, tt := range map[string]struct {
		variable, url string
		want          bool
	}{
		"a service":                       {"K_SERVICE", "http://127.0.0.1:8080", true},
		"a job":                           {"CLOUD_RUN_JOB", "", true},
		"a worker pool":                   {"CLOUD_RUN_WORKER_POOL", "", true},
		"a metadata server that is named": {EnvHost, "http://127.0.0.1:8080", true},
		"an instance, which calls a server by https": {"PORT", "https://errand.example.com", true},
		"a laptop":           {"PORT", "http://127.0.0.1:8080", false},
		"a laptop, by https": {"PORT", "https://127.0.0.1:8443", false},
		"a laptop, by name":  {"", "https://localhost:8443", false},
		"another machine's server without encryption": {"", "http://errand.example.com", false},
		"nothing said": {"", "", false},
		"a URL that is none, which somebody else tells": {"", "https://%", false},
	} {
		got := OnPlatform(func(asked string) string {
			if asked == tt.variable {
				return "x"
			}
			return ""
		}, tt.url)
		if got != tt.want {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
	}
}

func FuzzExpiry(f *testing.F) {
	f.Add(tokenUntil(now, ""))
	f.Add("a.b.c")
	f.Add(token(`{"exp":-1}`))
	f.Fuzz(func(t *testing.T, s string) {
		if at, err := expiry(s); err == nil && (at.Unix() < 1 || at.Year() > 9999) {
			t.Errorf("%q ends at %v, which is no time", s, at)
		}
	})
}
