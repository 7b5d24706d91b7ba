# One image for all processes: `manage.py migrate`, `serve` and `work` differ only in their command.
FROM python:3.12-slim

RUN useradd --create-home turnkeeper
WORKDIR /srv/turnkeeper
COPY requirements.txt requirements-anthropic.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements-anthropic.txt
COPY manage.py ./
COPY project project
COPY runs runs
COPY chat chat
COPY templates templates
COPY static static

USER turnkeeper
ENV PYTHONUNBUFFERED=1 DATA_DIR=/home/turnkeeper/data
EXPOSE 8000
CMD ["python", "manage.py", "serve", "--host", "0.0.0.0", "--port", "8000"]
