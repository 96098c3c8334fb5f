"""Text to token ids and back, one face for three kinds of vocabulary file."""

from models import chat
from models.wording import one_line

REPLACEMENT = "\ufffd"  # what decoding makes of bytes that are not, or not yet, a character


class Tokenizer:
    """A backend (see tokenizer_hf.py, tokenizer_spm.py) with its chat template and special ids.

    special_tokens: name -> text, such as {"bos_token": "<s>"}, which chat templates use.
    chat_template: Jinja text, or None. eos_token_ids: each of them ends a text.
    """

    def __init__(
        self,
        backend,
        *,
        chat_template=None,
        special_tokens=None,
        bos_token_id=None,
        eos_token_ids=(),
    ):
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)

    @property
    def vocab_size(self):
        """Number of ids that have a text."""
        return self._backend.vocab_size

    def encode(self, text, add_special=True):
        """Ids of `text`; with `add_special`, also the ids the model expects around it (often one
        bos).

        Special tokens written out in the text become their ids. A text from `apply_chat_template`
        already has all it needs: encode it with add_special=False.

        Raises ValueError for a text that the vocabulary has no ids for, and for half a surrogate
        pair, which is no character.
        """
        try:
            return self._backend.encode(text, add_special)
        except Exception as error:  # the libraries raise bare Exception
            raise ValueError(f"the tokenizer cannot encode this text: {one_line(error)}") from None

    def decode(self, ids, skip_special=True):
        """Text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids without a text are left out."""
        return self._backend.decode(list(ids), skip_special)

    def apply_chat_template(self, messages, add_generation_prompt=True):
        """The text that asks a chat model to answer `messages` ([{"role": ..., "content": ...},
        ...]).

        Raises ValueError if there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError("this model has no chat template")
        return chat.render(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            **self._special_tokens,
        )

    def stream(self, skip_special=True):
        """A new Stream for the ids of one text."""
        return Stream(self, skip_special)


class Stream:
    """Text of ids that come one at a time. What `push` and `flush` return, joined, is
    `decode(ids)`.

    The last ids that gave text are decoded again with each new one, because a vocabulary may drop
    the space before the first word of whatever it decodes.
    """

    def __init__(self, tokenizer, skip_special=True):
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids = []  # those that gave the last text, then those that wait
        self._done = 0  # how many of them have given their text

    def push(self, token_id):
        """The text that `token_id` completes: "" while a character's bytes are still incomplete."""
        self._ids.append(token_id)
        text = self._waiting()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._ids = self._ids[self._done :]
        self._done = len(self._ids)
        return text

    def flush(self):
        """What is left at the end: U+FFFD for bytes that never became a character, mostly ""."""
        text = self._waiting()
        self._ids, self._done = [], 0
        return text

    def _waiting(self):
        before = self._tokenizer.decode(self._ids[: self._done], self._skip_special)
        return self._tokenizer.decode(self._ids, self._skip_special)[len(before) :]
