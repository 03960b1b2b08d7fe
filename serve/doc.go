// Package serve loads batches on other hosts, and sends them to a trainer in any language.
//
// The contents of a batch depend only on the seed, the epoch and the batch's position. So a client asks for
// a batch by its number. Any server can answer, because servers keep no state. You may stop, add and
// replace servers while training goes on: each sample still comes once, in order.
//
// A [Server] uses the protocol Arrow Flight. [Open] makes a dataset of one or several servers; pass this
// dataset to nwt.NewLoader or nwt.Tune. Programs in other languages ask for whole batches with these calls
// of Flight:
//
//	GetFlightInfo  path [rank, world] → schema, batches per epoch
//	DoGet          ticket {"epoch": 3, "batch": 17, "rank": 0, "world": 8} → that batch
//	DoGet          … with "samples" and "order" of a state: "batch" counts from that state
//	DoGet          … with "partial": true: bad samples are left out, and named in the answer's "bad"
//	DoAction       "indices" with a ticket → the indices of that batch's samples, as JSON; nothing is loaded
//
// A ticket may contain "version": 3. A server of another version then refuses it.
//
// A batch is one record batch. Each field is a column of fixed-shape tensors. Each ragged dimension has a
// column of lengths.
package serve
